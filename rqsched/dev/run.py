"""`rqsched dev`: a whole system in one terminal, which leaves nothing running at the end.

This module owns the processes, including the dashboard's, and the embedded Valkey of the data folder; `screen` owns
the display.
"""

from __future__ import annotations

import fcntl
import importlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from rich.console import Console

from rqsched import embedded
from rqsched.api.scheduler import Scheduler
from rqsched.config import Settings
from rqsched.dev.screen import Location, Screen, Snapshot, read_snapshot
from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.chain.imports import import_workflows
from rqsched.kernel.store import schema_version
from rqsched.run.supervisor import ChildRole, Progress, Supervisor
from rqsched.run.worker import supervise

T = TypeVar("T")
_REFRESH_SECONDS = 0.5
WORKER_LOG = "worker.log"
_HOST = "127.0.0.1"
_PORT = 8000
"""The port of the dashboard, if it is free."""
_WEB_SILENCE = 30.0


def run_dev(
    settings: Settings,
    *,
    queues: Sequence[str] = (),
    seconds: float | None = None,
    console: Console | None = None,
) -> int:
    """Serve schedules from this terminal until Ctrl-C, SIGTERM or `seconds`; returns the exit code.

    Configured servers are used. Without them, SQLite and the embedded Valkey in `data_dir` are used, and the data
    stays. Schedules that an imported module declares (`SCHEDULES`, or a function `schedules(scheduler)`) are synced. A
    terminal shows a live screen; otherwise lines are written. When this returns, all processes that it started have
    ended. Raises ConfigError if another `rqsched dev` uses the data folder.
    """
    settings = settings.model_copy(update={"data_dir": settings.data_dir.absolute()})
    console = console or Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with _claimed(settings.data_dir) as claim, _own_valkey(settings, claim), closing(_scheduler(settings)) as scheduler:
        _sync(scheduler)
        code = _supervise(scheduler, queues, seconds, console)
    ended = f"Ended. The data stays in {settings.data_dir}; the same command continues with it."
    console.print(ended, soft_wrap=True, markup=False, highlight=False)
    return code


def _supervise(scheduler: Scheduler, queues: Sequence[str], seconds: float | None, console: Console) -> int:
    settings = scheduler.settings
    scheduler.runtime.database.close()
    web = _web_role()
    location = _location(settings, web[1] if web else None)
    with (settings.data_dir / WORKER_LOG).open("ab") as log, Screen(location, console) as screen:
        wanted = queues or [settings.default_queue]
        beside = [web[0]] if web else []
        supervisor = supervise(wanted, output=log, environment=settings.variables(), beside=beside)
        return supervisor.run(_Turn(scheduler, supervisor, screen, seconds))


def _leave(number: int, frame: Any) -> None:
    """Exit through the open `with` blocks, so that every process that was started ends too."""
    del frame
    sys.exit(128 + number)


@contextmanager
def _claimed(data_dir: Path) -> Iterator[IO[str]]:
    """Refuse a second `rqsched dev` on the folder, because the one that ends first would stop the Valkey of both."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with embedded.open_privately(data_dir / "dev.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"`rqsched dev` already runs on {data_dir}; end it, or set RQSCHED_DATA_DIR to another folder."
            ) from None
        yield file


@contextmanager
def _own_valkey(settings: Settings, claim: IO[str]) -> Iterator[None]:
    """Start the embedded Valkey if it is needed, and stop it at the end unless it ran before.

    The file `claim` holds the pid of the Valkey that `rqsched dev` started. If `rqsched dev` was killed, its Valkey is
    still running, and the next `rqsched dev` stops it.
    """
    if settings.redis_url is not None:
        yield
        return
    found = embedded.find(settings.data_dir)
    claim.seek(0)
    is_own = found is None or claim.read() == str(found.pid)
    try:
        pid = embedded.attach(settings.data_dir).pid
        if is_own:
            claim.truncate(0)
            claim.write(str(pid))
            claim.flush()
        yield
    finally:
        if is_own:
            embedded.stop(settings.data_dir)


def _scheduler(settings: Settings) -> Scheduler:
    scheduler = Scheduler(settings=settings)
    if not settings.is_sqlite:
        schema_version.upgrade(scheduler.runtime.database)
    import_workflows(settings)
    scheduler.runtime.record_workflows()
    return scheduler


def _location(settings: Settings, dashboard: str | None) -> Location:
    path = Path(sys.executable).parent / "rqsched"
    is_default = settings.data_dir == Path(str(Settings.model_fields["data_dir"].default)).absolute()
    return Location(
        data_dir=settings.data_dir,
        log_path=settings.data_dir / WORKER_LOG,
        command=str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path),
        dashboard=dashboard,
        environment="" if is_default else f"RQSCHED_DATA_DIR={settings.data_dir} ",
    )


def _sync(scheduler: Scheduler) -> None:
    declared = list[Declaration]()
    for name in scheduler.settings.imports:
        module = importlib.import_module(name)
        declare = getattr(module, "schedules", None)
        declared += declare(scheduler) if callable(declare) else getattr(module, "SCHEDULES", ())
    if declared:
        scheduler.sync(declared)


def _web_role() -> tuple[ChildRole, str] | None:
    """Return the child process that serves the dashboard, and its address; None if its extra is not installed."""
    try:
        from rqsched.dashboard.routes import routes  # noqa: F401, PLC0415 - an optional extra
    except ModuleNotFoundError:
        return None
    port = _free_port()
    return ChildRole("web", partial(_serve_dashboard, port=port), _WEB_SILENCE), f"http://{_HOST}:{port}/"


def _free_port() -> int:
    for wanted in (_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, wanted))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise ConfigError(f"no port of {_HOST} is free for the dashboard; close a program that listens there.")


def _serve_dashboard(progress: Progress, *, port: int) -> None:
    """Serve the dashboard until SIGTERM. Each second the event loop reports to `progress` that it is not blocked."""
    import uvicorn  # noqa: PLC0415 - an optional extra

    from rqsched.http import create_app, run_server  # noqa: PLC0415 - an optional extra

    async def turn() -> None:
        progress.turn()

    app = create_app(settings=Settings())
    options = uvicorn.Config(
        app, _HOST, port, log_config=None, server_header=False, callback_notify=turn, timeout_notify=1
    )
    run_server(options)


class _Turn:
    """The work after each check of the supervisor's children: time limit, Valkey, screen."""

    def __init__(self, scheduler: Scheduler, supervisor: Supervisor, screen: Screen, seconds: float | None) -> None:
        self._scheduler = scheduler
        self._supervisor = supervisor
        self._screen = screen
        self._ends_at = None if seconds is None else time.monotonic() + seconds
        self._refresh_at = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if self._ends_at is not None and now >= self._ends_at and not self._supervisor.is_stopping:
            self._supervisor.stop()
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_SECONDS
            settings = self._scheduler.settings
            if (
                settings.redis_url is None and not self._supervisor.is_stopping
            ):  # starts the Valkey again if it was killed
                _quietly(partial(embedded.attach, settings.data_dir))
            self._screen.show(self._read())

    def _read(self) -> Snapshot | None:
        try:
            return _quietly(
                lambda: read_snapshot(
                    self._scheduler, self._supervisor.children, is_ending=self._supervisor.is_stopping
                )
            )
        finally:
            self._scheduler.runtime.database.close()  # the supervisor forks between turns


def _quietly(work: Callable[[], T]) -> T | None:
    """Return the result of `work`; None if a server is down. The screen then stays as it is, and the worker waits."""
    try:
        return work()
    except BackendUnavailableError:
        return None
