"""The Dockerfiles: a linter reads them, and their installs and commands work without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rqsched import Scheduler
from tests.support.processes import BIN, REPOSITORY, SOON, Processes, wait_until
from tests.system.acceptance.deployment import APPLICATION

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

DOCKERFILES = {"project": REPOSITORY / "Dockerfile", "application": APPLICATION / "Dockerfile"}
CREATE = ["create", "greeting", "greet", "--every", "1s", "--args", '["Ada"]']
Instruction = tuple[str, str]


def instructions(file: Path) -> list[Instruction]:
    """The instructions of the application's Dockerfile: name and arguments, each joined to one line."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(one[0], " ".join(one[2].split())) for one in (line.partition(" ") for line in text.splitlines() if line)]


def stages(file: Path) -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for one in instructions(file):
        if one[0] == "FROM":
            found.append([])
        found[-1].append(one)
    return found


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_linter_finds_nothing(name: str) -> None:
    read = subprocess.run([BIN / "hadolint", DOCKERFILES[name]], capture_output=True, text=True, check=False)

    assert (read.returncode, read.stdout + read.stderr) == (0, "")


def test_the_application_is_no_root_and_owns_nothing_of_its_image() -> None:
    build, image = stages(DOCKERFILES["application"])

    assert [word for word in (*build, *image) if "--chown" in word[1]] == []
    assert [text for name, text in image if name == "USER"] == ["10001"]
    assert next(text for name, text in image if name == "RUN").startswith("useradd --uid 10001 ")
    assert ("STOPSIGNAL", "SIGTERM") in image


def test_no_secret_and_no_manifest_is_copied_into_the_image() -> None:
    ignored = (APPLICATION / ".dockerignore").read_text().splitlines()
    copied = {path.name for path in APPLICATION.iterdir()} - {"__pycache__"} - {*ignored}

    assert copied == {".dockerignore", "README.md", "jobs.py", "requirements.txt"}
    assert {".env", ".git", "**/__pycache__"} <= {*ignored}


class Image:
    """The result of the application's Dockerfile. The paths of the image are below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.build, self.image = stages(DOCKERFILES["application"])
        requirements = (APPLICATION / "requirements.txt").read_text()
        here = re.sub(
            r"^rqsched(\[.*\]) @ .*$", rf"rqsched\1 @ {REPOSITORY.as_uri()}", requirements, flags=re.MULTILINE
        )
        assert here != requirements
        (folder / "tmp").mkdir()
        (folder / "tmp" / "requirements.txt").write_text(here)
        shutil.copytree(APPLICATION, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))

    def here(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(opt/venv|app|tmp)\b", rf"{self.folder}/\1", text)

    def install(self) -> None:
        """Run the first stage with this machine's cache and Python."""
        [command] = [text for name, text in self.build if name == "RUN"]
        words = re.sub(r"--mount=\S+ ", "", self.here(command)).replace("python -m venv", f"{sys.executable} -m venv")
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def environment(self) -> dict[str, str]:
        [line] = [text for name, text in self.image if name == "ENV"]
        pairs = re.findall(r'(\w+)="?([^" ]+)"?', self.here(line))
        return {name: value.replace("$PATH", os.environ["PATH"]) for name, value in pairs}

    def command(self, name: str) -> list[str]:
        """The command of CMD or HEALTHCHECK, which are lists of words."""
        [text] = [text for one, text in self.image if one == name]
        words: list[str] = json.loads(text[text.index("[") :])
        return words


@pytest.fixture
def image(tmp_path: Path) -> Image:
    image = Image(tmp_path)
    image.install()
    return image


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(tmp_path, {})) as started:
        yield started


@pytest.mark.postgres
def test_what_it_installs_starts_a_worker_that_runs_the_application_and_answers_its_health_check(
    image: Image, processes: Processes, postgres_url: str, redis_url: str
) -> None:
    given = {"RQSCHED_DATABASE_URL": postgres_url, "RQSCHED_REDIS_URL": redis_url, "RQSCHED_IMPORTS": "jobs"}
    processes.environment |= image.environment | given | {"RQSCHED_RUN_DIR": str(image.folder / "tmp" / "run")}
    folder = image.folder / "app"

    worker = processes.start(found(image, "CMD"), cwd=folder)

    def is_healthy() -> bool:
        asked = processes.start(found(image, "HEALTHCHECK"), cwd=folder)
        return asked.wait() == 0

    wait_until(is_healthy, timeout=SOON, what=lambda: f"a worker that answers:\n{worker.log()}")
    with closing(Scheduler(database_url=postgres_url, redis_url=redis_url)) as scheduler:
        created = processes.start(found(image, "CMD")[:1] + CREATE, cwd=folder)
        assert created.wait() == 0, created.log()
        greeting = scheduler.get("greeting")
        wait_until(lambda: greeting.refresh().success_count > 1, timeout=SOON, what="runs of jobs.py")
    assert not [*folder.rglob("__pycache__")], "its user may write nothing there"


def found(image: Image, name: str) -> list[str]:
    """Return a command with the path of the image's program: a process is started before its PATH is set."""
    program, *words = image.command(name)
    return [str(image.folder / "opt" / "venv" / "bin" / program), *words]
