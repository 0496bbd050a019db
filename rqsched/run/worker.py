"""`rqsched worker`: a supervisor whose children are a dispatcher and the processes that execute runs.

Runs are executed by one or several RQ workers that fork for every run, or by runners, which execute one run after
another. `--concurrency` is their number. A child that dies or hangs is replaced. The children end when the supervisor
ends, however it ends. At SIGTERM the dispatcher finishes its batch, and the other processes finish their job.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from redis.exceptions import RedisError
from rq import SimpleWorker, Worker
from rq.logutils import setup_loghandlers
from rq.utils import now as rq_now
from rq.worker import BaseWorker, SpawnWorker

from rqsched.config import Settings, export
from rqsched.embedded import resolve_urls
from rqsched.errors import BackendUnavailableError, ConfigError, DatabasePrivilegeError, DatabaseReadOnlyError
from rqsched.features.list import make_runtime
from rqsched.kernel.chain.dispatcher import Dispatcher, collecting_seldom
from rqsched.kernel.chain.imports import import_workflows
from rqsched.kernel.chain.option_checks import require_sentry
from rqsched.kernel.chain.runtime import Runtime, using
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database, DatabaseError
from rqsched.kernel.transport.client import connect
from rqsched.run.condition import find_silent_server
from rqsched.run.rq_commands import CommandListener
from rqsched.run.rq_worker import (
    PatientWorker,
    end_scheduler_with,
    make_queues,
    make_run_worker_class,
    make_worker,
    take_over_name,
)
from rqsched.run.runner import Runner, begin_pulse, make_runner_class, prepare_runner, resident_bytes
from rqsched.run.runner_slot import RunnerWatch, Slot
from rqsched.run.supervisor import DISPATCHER_SILENCE, DONE, FORK, RENEW, ChildRole, Progress, Supervisor, python
from rqsched.run.vital_signs import run_visibly
from rqsched.run.warm_up import warm_up
from rqsched.run.work_horse import HorseStarter, RunHorse

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_SIZE = re.compile(r"(\d+)\s*([KMG])i?B?", re.IGNORECASE)
RUNNER_JOBS = 1_000
"""By default, a runner is replaced after this many jobs, because its runs may have leaked memory."""
RUNNER_BYTES = 512 << 20
"""By default, a runner with more resident bytes is replaced. If twice its bytes at the start is more, that is its
limit."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How an `rqsched worker` executes. `check` refuses options that do not go together."""

    concurrency: int | None = None
    """The number of processes that execute one run after another; None for one process that forks for every run."""
    isolate: bool = False
    """Whether each of these processes forks for every run."""
    burst: bool = False
    """Whether the worker makes one pass, executes what is queued, and ends."""
    max_jobs: int | None = None
    """A process that takes jobs is replaced after this many; in a burst, it ends. Default: 1 000, for runners only."""
    max_memory: int | None = None
    """A runner with more resident bytes is replaced after its run. By default, the limit is 512 MiB or twice its bytes
    at the start, whichever is more."""
    max_idle_time: int | None = None
    """After this many seconds without a job, a process that takes jobs ends. The worker ends with the last of them."""
    worker_class: str | None = None
    """The dotted path of the application's own subclass of RQ's Worker."""
    exception_handlers: tuple[str, ...] = ()
    """Dotted paths of RQ's exception handlers."""
    name: str | None = None
    """The worker's name at RQ; each of several processes appends its number."""

    def check(self) -> None:
        """Raise ConfigError if an option cannot be used, or if options do not go together."""
        for option in ("concurrency", "max_jobs", "max_memory", "max_idle_time"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"--{option.replace('_', '-')} must be at least 1.")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError("--name takes 1 to 200 of A-Z a-z 0-9 . _ : -, with a letter or digit first.")
        if self.max_memory is not None and not self.has_runners:
            raise ConfigError(
                "--max-memory bounds processes that execute run after run: give --concurrency N, without --isolate. "
                "A process that is forked for one run ends with it anyway."
            )
        if self.burst and self.max_idle_time is not None:
            raise ConfigError("--burst ends when the queues are empty, so --max-idle-time has no use; leave one out.")
        self.find_worker_class()
        self.find_exception_handlers()

    @property
    def most_jobs(self) -> int | None:
        """After how many jobs each process that takes jobs ends and is replaced; None for never."""
        return RUNNER_JOBS if self.max_jobs is None and self.has_runners else self.max_jobs

    def most_memory(self, at_start: int) -> int:
        """Return the resident bytes beyond which a runner that began with `at_start` is replaced after its run."""
        return self.max_memory or max(RUNNER_BYTES, 2 * at_start)

    @property
    def finishes(self) -> bool:
        """Whether the worker ends when there is nothing to do."""
        return self.burst or self.max_idle_time is not None

    @property
    def has_runners(self) -> bool:
        """Whether runs are executed one after the other in processes that stay (runners)."""
        return self.concurrency is not None and not self.isolate

    def find_worker_class(self) -> type[Worker]:
        """Import the class; raises ConfigError if `rqsched worker` cannot build on it."""
        if self.worker_class is None:
            return Worker
        found = _import("--worker-class", self.worker_class)
        if not (inspect.isclass(found) and issubclass(found, BaseWorker)):
            raise ConfigError(f"--worker-class: {self.worker_class} is not a class of RQ's workers; name one.")
        if issubclass(found, PatientWorker):
            raise ConfigError(
                f"--worker-class: {self.worker_class} brings a dispatcher of its own. Name the class of RQ it is made "
                f"from, or run `rq worker -w {self.worker_class}`."
            )
        if issubclass(found, SimpleWorker) or not issubclass(found, Worker):
            raise ConfigError(
                f"--worker-class: {self.worker_class} executes jobs in its own process, where nobody can end them. "
                "Give --concurrency 1 for that, and a subclass of rq.Worker."
            )
        return found

    def find_exception_handlers(self) -> list[Callable[..., Any]]:
        """Import RQ's exception handlers; raises ConfigError for one that cannot be called."""
        found = [_import("--exception-handler", path) for path in self.exception_handlers]
        for path, handler in zip(self.exception_handlers, found, strict=True):
            if not callable(handler):
                raise ConfigError(f"--exception-handler: {path} cannot be called; name a function.")
        return found

    def names(self) -> list[str | None]:
        """Return the name at RQ of each process that takes jobs; None if RQ chooses the name."""
        if self.concurrency is None or self.name is None:
            return [self.name] * (self.concurrency or 1)
        return [f"{self.name}-{number}" for number in range(1, self.concurrency + 1)]


def parse_size(text: str) -> int:
    """Read an amount of memory, such as `200M` or `1G`, as bytes; raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--max-memory: {text!r} is not an amount of memory; write 200M or 1G.")
    return int(match[1]) * _UNITS[match[2].upper()]


def _import(option: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}: {path!r} cannot be imported ({error}); write module.name.") from error


_log = logging.getLogger(__name__)

RUNS_SILENCE = 120.0
"""The RQ worker is replaced after this many seconds without a turn of its loop. While a run executes, the loop makes a
turn every half minute.
"""
RUNNER_SILENCE = 60.0
"""The same for a runner. A thread of the runner shows every second that it lives, unless a run holds the interpreter.
The time is at least four intervals of reconcile, because reconcile ends such a run as lost after three intervals."""
_RQ_LOG_LEVEL = "WARNING"
_NAME_SECONDS = 90.0
"""A registered worker counts as dead after this many seconds without a heartbeat. RQ sends one every half minute."""


def serve(queues: Sequence[str], *, recover: bool = True, options: WorkerOptions | None = None) -> int:
    """Supervise a dispatcher and the processes that execute runs on `queues`, until SIGTERM or SIGINT.

    Returns the exit code. With `recover`, the dispatcher begins with a pass of reconcile, and fires between the batches
    of that pass. A burst makes one pass first and has no dispatcher. Raises ConfigError if the options do not go
    together, if the control queue belongs to another database, if a name is taken, or if the database refuses this
    process.
    """
    options = options or WorkerOptions()
    options.check()
    runtime = make_runtime(Settings())
    prepare(runtime)
    require_free_names(runtime, options)
    runtime.close()
    if options.burst and runtime.write_gate.is_closed:
        if (lacking := runtime.database.lacking).privileges:
            raise DatabasePrivilegeError(lacking.privileges, "a burst would end with nothing done", user=lacking.user)
        raise DatabaseReadOnlyError(
            "the database takes no writes, it is a standby or read-only: a burst would end with nothing done. Set "
            "RQSCHED_DATABASE_URL to the primary."
        )
    if options.burst:
        make_one_pass(runtime)
    return run_visibly(supervise(queues, recover=recover, options=options), "worker", runtime.settings.run_dir)


def serve_dispatcher(*, recover: bool = True) -> int:
    """Supervise only a dispatcher, beside workers of another kind, until SIGTERM or SIGINT; raises as `serve` does."""
    runtime = make_runtime(Settings())
    prepare(runtime)
    runtime.close()
    return run_visibly(Supervisor([_dispatcher_role(recover=recover)]), "dispatcher", runtime.settings.run_dir)


def supervise(
    queues: Sequence[str],
    *,
    recover: bool = True,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    beside: Sequence[ChildRole] = (),
    options: WorkerOptions | None = None,
) -> Supervisor:
    """Prepare the supervisor of a dispatcher and of the processes that execute runs.

    `output` and `environment` are for its children (see `Supervisor`). `beside` holds the roles of further children.
    """
    options = options or WorkerOptions()
    dispatchers = [] if options.burst else [_dispatcher_role(recover=recover)]
    executing = _runner_roles if options.has_runners else _forking_roles
    return Supervisor(
        [*dispatchers, *executing(tuple(queues), options), *beside], output=output, environment=environment
    )


def prepare(runtime: Runtime) -> None:
    """Prepare the schema and the workflows for all processes of a worker, and check that Redis belongs to this
    database.

    Raises ConfigError at once if only a changed setting can help.
    """
    runtime.database.require_accepted()
    _open_database(runtime)
    if runtime.tracing is not None:
        runtime.tracing.warn_unless_set_up()
    if runtime.write_gate.is_open():
        runtime.record_workflows()
    runtime.ownership.is_known_to_redis()
    runtime.ownership.claim_server(waits=True)


def open_runtime(settings: Settings | None = None) -> Runtime:
    """Open the runtime of a worker process: settings, schema, workflows."""
    runtime = make_runtime(settings or Settings())
    _open_database(runtime)
    return runtime


def _open_database(runtime: Runtime) -> None:
    if runtime.settings.is_sqlite:
        schema_version.upgrade(runtime.database)
    else:
        schema_version.require_current(runtime.database)
        warn_of_encoding(runtime.database)
    import_workflows(runtime.settings)
    require_sentry(runtime.settings)


def warn_of_encoding(database: Database) -> None:
    """Log a warning if the database cannot store every character. Such characters are escaped."""
    encoding = database.encoding()
    if encoding not in {None, schema_version.UTF8}:
        told = "the database's encoding is %s, not UTF8: texts that it cannot store are escaped; see `rqsched doctor`"
        _log.warning(told, encoding, extra={"action": "not_utf8"})


def require_free_names(runtime: Runtime, options: WorkerOptions) -> None:
    """Raise ConfigError if another live worker has a name that was given to this worker."""
    for name in filter(None, options.names()):
        key = f"{Worker.redis_worker_namespace_prefix}{name}"
        other = Worker.find_by_key(key, connection=runtime.transport.control.connection)
        if other is not None and _may_be_alive(other):
            raise ConfigError(
                f"--name: a worker named {name!r} is alive ({other.hostname}, pid {other.pid}); choose another name. "
                f"If it was killed, its name is free {_NAME_SECONDS:.0f} s after its last sign of life."
            )


def _may_be_alive(worker: BaseWorker) -> bool:
    """Return whether a registered worker may be alive; RQ itself counts it as alive for minutes."""
    if worker.death_date is not None or worker.last_heartbeat is None:
        return False
    if worker.hostname == socket.gethostname() and worker.pid is not None and not _is_running(worker.pid):
        return False
    return (rq_now() - worker.last_heartbeat).total_seconds() < _NAME_SECONDS


def _is_running(pid: int) -> bool:
    """Return whether a process runs. A process that has ended but was not reaped does not run (Linux)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in {"Z", "X"}


def make_one_pass(runtime: Runtime, *, spawns: bool = False) -> None:
    """Make a pass of reconcile and fire all due links, in a new process. Wait until that process ends.

    No process is started if no schedule exists, or if a pass was made within the last interval and no link is due. This
    process keeps no connection to SQL. With `spawns`, the process is a new Python instead of a fork.
    """
    if not _needs_pass(runtime):
        return
    if spawns:
        export()
        status = subprocess.run(python(__name__, "dispatch_once()"), check=False).returncode  # noqa: S603
    else:
        process = FORK.Process(target=dispatch_once)
        process.start()
        process.join()
        status = process.exitcode or 0
    if status != 0:
        _log.error("no pass was made: what is due does not fire (%d)", status, extra={"action": "pass_failed"})


def _needs_pass(runtime: Runtime) -> bool:
    try:
        if runtime.transport.was_reconciled(now=runtime.now()):
            return False
        return runtime.database.read(reconcile_queries.has_schedules)
    except (BackendUnavailableError, DatabaseError, RedisError):
        return True  # the pass reports the error
    finally:
        runtime.database.close()


def dispatch_once() -> None:
    """Make a pass of reconcile, fire all due links, and end."""
    runtime = open_runtime()
    runtime.transport.acquire_interval(runtime.settings.reconcile_interval)  # others make no pass now
    with collecting_seldom():
        Dispatcher(runtime, recover=True).run_until_idle()
    if runtime.tracing is not None:
        runtime.tracing.flush()


def dispatch(runtime: Runtime, *, recover: bool = True, on_turn: Callable[[], None]) -> None:
    """Run a dispatcher until SIGTERM or SIGINT; `recover` makes a pass of reconcile first."""
    dispatcher = Dispatcher(runtime, recover=recover, on_turn=on_turn)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    with collecting_seldom():
        dispatcher.run()
    if runtime.tracing is not None:
        runtime.tracing.flush()


def _dispatcher_role(*, recover: bool) -> ChildRole:
    return ChildRole("dispatcher", partial(_run_dispatcher, recover=recover), DISPATCHER_SILENCE)


def _run_dispatcher(progress: Progress, *, recover: bool) -> None:
    runtime = open_runtime()

    def turn() -> None:
        progress.turn(waits_for_writes=runtime.write_gate.is_closed, is_frozen=runtime.freezes.is_own)

    dispatch(runtime, recover=recover, on_turn=turn)


def _forking_roles(queues: tuple[str, ...], options: WorkerOptions) -> list[ChildRole]:
    """Return the roles of one worker that forks for every run, or of several such workers."""
    return [
        ChildRole(
            "runs" if options.concurrency is None else f"runs-{number}",
            partial(_run_forking_worker, queues=queues, options=options, name=name),
            RUNS_SILENCE,
            finishes=options.finishes,
        )
        for number, name in enumerate(options.names(), 1)
    ]


def _run_forking_worker(
    progress: Progress, *, queues: tuple[str, ...], options: WorkerOptions, name: str | None
) -> None:
    runtime = open_runtime()
    worker = _make(make_run_worker_class(options.find_worker_class()), runtime, queues, options, name)
    cast("PatientWorker", worker)._progress = progress
    cast("PatientWorker", worker).runtime = runtime
    end_scheduler_with(worker)
    if name is not None:
        take_over_name(worker)
    _work(worker, runtime, options, with_scheduler=True)


def _runner_roles(queues: tuple[str, ...], options: WorkerOptions) -> list[ChildRole]:
    """Return the roles of the runners, and of the process that receives RQ's commands for them."""
    slots = [Slot(name or uuid.uuid4().hex) for name in options.names()]
    silence = max(RUNNER_SILENCE, 4 * Settings().reconcile_interval.total_seconds())
    roles = [
        ChildRole(
            f"run-{number}",
            partial(_run_runner, queues=queues, options=options, slot=slot),
            silence,
            watch=RunnerWatch(slot, _test_servers),
            finishes=options.finishes,
        )
        for number, slot in enumerate(slots, 1)
    ]
    listen = partial(_run_command_listener, queues=queues, slots=slots, keeps_scheduler=not options.burst)
    return [*roles, ChildRole("commands", listen, DISPATCHER_SILENCE, is_last=True)]


def _test_servers() -> None:
    """End this process, which has executed no run. The status is 0 if it reaches SQL and Redis."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(find_silent_server() is not None)


def _run_runner(progress: Progress, *, queues: tuple[str, ...], options: WorkerOptions, slot: Slot) -> None:
    forks = not (slot.is_closing or issubclass(options.find_worker_class(), SpawnWorker))
    starter = HorseStarter(partial(_prepare_horses, queues, options, slot.name)) if forks else None
    runtime = open_runtime()
    runtime.database.keep_connection()
    worker = _make(make_runner_class(options.find_worker_class()), runtime, queues, options, slot.name)
    runner = prepare_runner(worker, slot, runtime)
    runner.starter = starter
    runner.max_memory = options.most_memory(resident_bytes())
    if slot.is_closing:
        return
    begin_pulse(runner, progress, os.getppid())
    _work(worker, runtime, options, with_scheduler=options.burst)


def _prepare_horses(queues: tuple[str, ...], options: WorkerOptions, name: str) -> RunHorse:
    """Prepare the process that forks the horses of a runner. It opens nothing that a fork must not inherit."""
    runtime = make_runtime(Settings())
    import_workflows(runtime.settings)
    runner = cast("Runner", _make(make_runner_class(options.find_worker_class()), runtime, queues, options, name))
    setup_loghandlers(_RQ_LOG_LEVEL)

    def run_horse(job_id: str, queue: str, execution_id: str) -> None:
        with using(runtime):
            runner.run_horse(job_id, queue, execution_id)

    return run_horse


def _run_command_listener(
    progress: Progress, *, queues: tuple[str, ...], slots: Sequence[Slot], keeps_scheduler: bool
) -> None:
    settings = Settings()
    redis = connect(resolve_urls(settings).redis_url)
    found = make_queues(settings, queues or (settings.default_queue,), redis)
    CommandListener(redis, found, slots, progress, keeps_scheduler=keeps_scheduler).run()


def _make(
    kind: type[Worker], runtime: Runtime, queues: tuple[str, ...], options: WorkerOptions, name: str | None
) -> Worker:
    handlers = options.find_exception_handlers()
    found = queues or (runtime.settings.default_queue,)
    return make_worker(kind, runtime, found, name=name, exception_handlers=handlers)


def _work(worker: Worker, runtime: Runtime, options: WorkerOptions, *, with_scheduler: bool) -> None:
    """Run RQ's loop, and end this process with the status that tells the supervisor what comes next."""
    with using(runtime):  # for the work horses, which inherit it
        warm_up(runtime)  # it leaves no connection open: SQLite loses track of its locks in a fork
        worker.work(
            burst=options.burst,
            max_jobs=options.most_jobs,
            max_idle_time=options.max_idle_time,
            with_scheduler=with_scheduler,
            logging_level=_RQ_LOG_LEVEL,
        )
    if runtime.tracing is not None:
        runtime.tracing.flush()
    if (status := exit_status(cast("PatientWorker", worker), options)) != 0:
        sys.exit(status)


def exit_status(worker: PatientWorker, options: WorkerOptions) -> int:
    """Return the exit status of a process whose loop has ended; it tells the supervisor what comes next."""
    if options.most_jobs is not None and worker.jobs_done >= options.most_jobs:
        return DONE if options.burst and options.max_jobs is not None else RENEW
    if getattr(worker, "is_worn", False):
        return RENEW
    return DONE if worker.is_idle and options.finishes else 0
