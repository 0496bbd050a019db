"""Applications that run RQ already get rqsched: a request creates a schedule that fires, and all they had still works.

Each application is a folder `before` and a folder `after`, of which a deploy replaces one by the other; its Procfile
says its processes: the web server, its `rq worker`, rq-dashboard. The dashboard is not restarted.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.processes import BIN, REPOSITORY, Process, Processes, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
SOON = 90.0
Request = dict[str, Any]


@dataclass(frozen=True)
class Existing:
    """One application, and the requests of its users."""

    name: str
    """Its folder, and that of its code."""
    page: str
    """The page of the docs that says how many lines were added."""
    own: Request
    """Makes the application enqueue a job of its own."""
    shown: str
    """The path that shows the effects of its jobs and runs."""
    has_job: Callable[[Any], bool]
    """Tell whether that page shows the work of its own job."""
    schedule: Request
    """Creates a schedule."""
    has_run: Callable[[Any], bool]
    """Tell whether that page shows the work of a run."""
    jobs: tuple[str, str]
    """How rq-dashboard describes a job of its own, and one of a run."""


EXISTING = {
    "flask": Existing(
        "shop",
        "flask.md",
        {"method": "POST", "url": "/orders", "json": {"number": "1"}},
        "/papers",
        lambda shown: "receipt-1" in shown,
        {"method": "POST", "url": "/reports", "json": {"name": "stock", "every": "1s"}},
        lambda shown: "report-stock" in shown,
        ("shop.jobs.write_receipt('1')", "stock: print-report"),
    ),
    "fastapi": Existing(
        "library",
        "fastapi.md",
        {"method": "POST", "url": "/loans", "json": {"book": "emma"}},
        "/papers",
        lambda shown: "slip-emma" in shown,
        {"method": "POST", "url": "/reminders?every=1s", "json": {"book": "emma"}},
        lambda shown: "reminder-emma" in shown,
        ("library.jobs.print_slip('emma')", "emma: remind"),
    ),
    "django": Existing(
        "clinic",
        "django.md",
        {"method": "POST", "url": "/visits/", "data": {"patient": "ada"}},
        "/visits/",
        lambda shown: any(visit["is_confirmed"] for visit in shown["visits"]),
        {"method": "POST", "url": "/visits/1/reminders/", "data": {"every": "1s"}},
        lambda shown: any(visit["reminders"] > 0 for visit in shown["visits"]),
        ("visits.jobs.confirm(1)", "visit:1: remind"),
    ),
}


@dataclass
class Deployment(Processes):
    """An application as it is deployed: a folder, a port, the processes of its Procfile."""

    existing: Existing
    port: int = field(default_factory=free_port)
    dashboard_port: int = field(default_factory=free_port)
    running: dict[str, Process] = field(default_factory=dict)

    def deploy(self, state: str) -> None:
        """Stop every process except the dashboard, put the code of a state in place, and start everything."""
        for name in [name for name in self.running if name != "dashboard"]:
            self.running.pop(name).terminate()
        shutil.copytree(HERE / self.existing.name / state, self.site, dirs_exist_ok=True)
        (self.site / "__init__.py").unlink()  # a package for mypy only
        variables = {**self.environment, "PORT": str(self.port), "DASHBOARD_PORT": str(self.dashboard_port)}
        named = Template((self.site / "settings.env").read_text()).substitute(variables)
        settings = dict(line.split("=", 1) for line in named.splitlines())
        for line in Template((self.site / "Procfile").read_text()).substitute(variables).splitlines():
            name, _, command = line.partition(": ")
            if name in self.running:
                continue
            process = self.start(["env", *shlex.split(command)], cwd=self.site, **settings)
            if name == "release":
                assert process.wait(timeout=SOON) == 0, process.log()
            else:
                self.running[name] = process
        shown = f"http://127.0.0.1:{self.port}{self.existing.shown}"
        wait_until(
            lambda: status_of(shown) == 200, timeout=SOON, what=lambda: f"an answer\n{self.running['web'].log()}"
        )

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def send(self, request: Request) -> httpx.Response:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30) as client:
            return client.request(**request)

    def wait_until_shown(self, is_there: Callable[[Any], bool]) -> None:
        def look() -> bool:
            return is_there(self.send({"method": "GET", "url": self.existing.shown}).json())

        wait_until(look, timeout=SOON, interval=0.2, what=lambda: f"its work\n{self.running['worker'].log()}")

    def work_of_its_own(self) -> None:
        """The application's own job is enqueued and its work is shown."""
        answer = self.send(self.existing.own)
        assert answer.status_code == 202, answer.text
        self.wait_until_shown(self.existing.has_job)

    def in_dashboard(self) -> list[str]:
        """The descriptions of the finished jobs that rq-dashboard lists."""
        path = "0/data/jobs/default/finished/100/asc/1.json"
        answer = httpx.get(f"http://127.0.0.1:{self.dashboard_port}/{path}", timeout=30)
        assert answer.status_code == 200, answer.text
        return [job["description"] for job in answer.json()["jobs"]]


@pytest.fixture(params=list(EXISTING.values()), ids=list(EXISTING))
def deployment(
    request: pytest.FixtureRequest, redis_url: str, empty_postgres_url: str, tmp_path: Path
) -> Iterator[Deployment]:
    at = urlsplit(empty_postgres_url)
    environment = {
        "DATABASE_URL": empty_postgres_url,
        "REDIS_URL": redis_url,
        "DB_HOST": at.hostname or "",
        "DB_PORT": str(at.port),
        "DB_USER": at.username or "",
        "DB_NAME": at.path.removeprefix("/"),
        "PYTHONPATH": os.pathsep.join([".", str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    deployment = Deployment(tmp_path, environment, request.param)
    yield deployment
    deployment.close()


def test_a_schedule_joins_an_application_that_runs_rq_and_all_it_had_still_works(deployment: Deployment) -> None:
    existing = deployment.existing
    deployment.deploy("before")
    deployment.work_of_its_own()

    deployment.deploy("after")
    created = deployment.send(existing.schedule)

    assert (created.status_code, "created" in created.text) == (200, True), created.text
    deployment.wait_until_shown(existing.has_run)
    deployment.work_of_its_own()
    wait_until(
        lambda: {*existing.jobs} <= {*deployment.in_dashboard()},
        timeout=SOON,
        interval=0.2,
        what=f"{existing.jobs} in rq-dashboard",
    )


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def added(existing: Existing) -> int:
    """How many lines the state `after` has that `before` has not: blank ones do not count, changed ones do."""
    before, after = (HERE / existing.name / state for state in ("before", "after"))
    names = [path.relative_to(after) for path in after.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    changes = [line for name in names for line in difflib.ndiff(lines_of(before / name), lines_of(after / name))]
    return len([line for line in changes if line.startswith("+ ") and line[2:].strip()])


@pytest.mark.parametrize("existing", EXISTING.values(), ids=EXISTING.keys())
def test_the_docs_say_how_many_lines_were_added(existing: Existing) -> None:
    page = (REPOSITORY / "docs" / existing.page).read_text()
    said = re.search(r"(\d+) lines are\s+added", page)
    assert said is not None, "the page says no number"
    assert int(said[1]) == added(existing)
