"""`rqsched worker`: a supervisor whose children are a dispatcher and what executes runs.

That is an RQ worker that forks for every run, or several, or as many runners as `--concurrency` says. A child that died
or stands still is restarted; the children end when the supervisor ends, however it ends. SIGTERM lets the dispatcher
finish its batch and the others their job.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, cast

from rq import Worker
from rq.logutils import setup_loghandlers
from rq.utils import now as rq_now
from rq.worker import BaseWorker, SpawnWorker

from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.notifications.receivers import require_sentry
from rqsched.chain.runtime import Runtime, import_workflows, using
from rqsched.config import Settings
from rqsched.embedded import resolve_urls
from rqsched.errors import ConfigError
from rqsched.processes.horse_starter import BeHorse, HorseStarter
from rqsched.processes.rq_commands import CommandListener
from rqsched.processes.rq_worker import (
    PatientWorker,
    RunWorker,
    end_scheduler_with,
    make_queues,
    make_run_worker_class,
    make_worker,
    take_over_name,
)
from rqsched.processes.runner import Runner, begin_pulse, make_runner_class, prepare_runner, resident_bytes
from rqsched.processes.runner_slot import Slot
from rqsched.processes.runner_watch import RunnerWatch
from rqsched.processes.supervisor import DISPATCHER_SILENCE, DONE, FORK, RENEW, Progress, Role, Supervisor
from rqsched.processes.vital_signs import run_visibly
from rqsched.processes.warm_up import warm_up
from rqsched.processes.worker_options import WorkerOptions
from rqsched.store import schema_version
from rqsched.transport.client import connect

_log = logging.getLogger(__name__)

RUNS_SILENCE = 120.0
"""The same for the RQ worker, whose loop turns every half minute while a run executes."""
RUNNER_SILENCE = 60.0
"""The same for a runner, whose pulse beats every second unless a run holds the interpreter; at least four intervals of
reconcile, for after three of them such a run is lost."""
ROLES = ("dispatcher", "runs")
_RQ_LOG_LEVEL = "WARNING"
_NAME_SECONDS = 90.0
"""After so long without a sign of life a registered worker is dead; RQ shows one at least every half minute."""


def open_runtime(settings: Settings | None = None) -> Runtime:
    """Open the runtime of a worker process: settings, schema, workflows."""
    runtime = Runtime(settings or Settings())
    _open_database(runtime)
    return runtime


def _open_database(runtime: Runtime) -> None:
    if runtime.settings.is_sqlite:
        schema_version.upgrade(runtime.database)
    else:
        schema_version.require_current(runtime.database)
    import_workflows(runtime.settings)
    require_sentry(runtime.settings)


def prepare(runtime: Runtime) -> None:
    """Do once what the processes of a worker need: the schema, the workflows, and a Redis that is this database's.

    Raises ConfigError at once where nothing but another setting helps.
    """
    runtime.database.require_accepted()
    _open_database(runtime)
    runtime.record_workflows()
    runtime.is_known_to_redis()


def serve(queues: Sequence[str], *, recover: bool = True, options: WorkerOptions | None = None) -> int:
    """Supervise a dispatcher and what executes runs on `queues` until SIGTERM or SIGINT; returns the exit code.

    The dispatcher's first act is a pass of reconcile (`recover`), in batches between which it fires; a burst makes one
    pass first and has none. Raises ConfigError when the options do not go together, when the control queue belongs to
    another database, or a name is taken, and at once when the database refuses this process.
    """
    options = options or WorkerOptions()
    options.check()
    runtime = Runtime(Settings())
    prepare(runtime)
    require_free_names(runtime, options)
    runtime.close()
    if options.burst:
        _make_one_pass()
    return run_visibly(supervise(queues, recover=recover, options=options), "worker", runtime.settings.run_dir)


def require_free_names(runtime: Runtime, options: WorkerOptions) -> None:
    """Raise ConfigError when another worker that lives has a name that was given to this one."""
    for name in options.names():
        other = (
            None if name is None else Worker.find_by_key(_key_of(name), connection=runtime.transport.control.connection)
        )
        if other is None or not _lives(other):
            continue
        raise ConfigError(
            f"--name: a worker named {name!r} is alive ({other.hostname}, pid {other.pid}); choose another name. If it "
            f"was killed, its name is free {_NAME_SECONDS:.0f} s after its last sign of life."
        )


def _key_of(name: str) -> str:
    return f"{Worker.redis_worker_namespace_prefix}{name}"


def _lives(worker: BaseWorker) -> bool:
    """Return whether a worker that is registered may be alive; RQ itself would believe so for minutes."""
    if worker.death_date is not None or worker.last_heartbeat is None:
        return False
    if worker.hostname == socket.gethostname() and worker.pid is not None and not _is_process(worker.pid):
        return False
    return (rq_now() - worker.last_heartbeat).total_seconds() < _NAME_SECONDS


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and waits for its parent to notice; False where the system does not say."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in {"Z", "X"}


def _make_one_pass() -> None:
    """Make a pass in a process of its own: this one must open no connection."""
    process = FORK.Process(target=dispatch_once)
    process.start()
    process.join()
    if process.exitcode:
        _log.error(
            "no pass was made: what is due does not fire (%s)", process.exitcode, extra={"action": "pass_failed"}
        )


def serve_dispatcher(*, recover: bool = True) -> int:
    """Supervise a dispatcher alone, for workers of another kind, until SIGTERM or SIGINT; raises as `serve` does."""
    runtime = Runtime(Settings())
    prepare(runtime)
    runtime.close()
    alone = Supervisor([Role("dispatcher", partial(be_dispatcher, recover=recover), DISPATCHER_SILENCE)])
    return run_visibly(alone, "dispatcher", runtime.settings.run_dir)


def supervise(
    queues: Sequence[str],
    *,
    recover: bool = True,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    beside: Sequence[Role] = (),
    options: WorkerOptions | None = None,
) -> Supervisor:
    """Prepare the supervisor of a dispatcher and of what executes; `output` and `environment` are its children's.

    `beside` are more roles that it keeps alive.
    """
    options = options or WorkerOptions()
    dispatcher = Role("dispatcher", partial(be_dispatcher, recover=recover), DISPATCHER_SILENCE)
    executing = run_roles(tuple(queues), options)
    return Supervisor(
        [*([] if options.burst else [dispatcher]), *executing, *beside], output=output, environment=environment
    )


def run_roles(queues: tuple[str, ...], options: WorkerOptions) -> list[Role]:
    """Return the roles of the processes that execute: one that forks for every run, N of them, or N runners."""
    if options.has_runners:
        return _runner_roles(queues, options)
    finishes = options.burst or options.max_idle_time is not None
    return [
        Role(
            "runs" if options.concurrency is None else f"runs-{number}",
            partial(_be_run_worker, queues=queues, options=options, name=name),
            RUNS_SILENCE,
            finishes=finishes,
        )
        for number, name in enumerate(options.names(), 1)
    ]


def _runner_roles(queues: tuple[str, ...], options: WorkerOptions) -> list[Role]:
    slots = [Slot(name or uuid.uuid4().hex) for name in options.names()]
    finishes = options.burst or options.max_idle_time is not None
    silence = max(RUNNER_SILENCE, 4 * Settings().reconcile_interval.total_seconds())
    roles = [
        Role(
            f"run-{number}",
            partial(_be_runner, queues=queues, options=options, slot=slot),
            silence,
            watch=RunnerWatch(slot),
            finishes=finishes,
        )
        for number, slot in enumerate(slots, 1)
    ]
    listen = partial(_be_command_listener, queues=queues, slots=slots)
    return [*roles, Role("commands", listen, DISPATCHER_SILENCE, is_last=True)]


def be_dispatcher(progress: Progress, *, recover: bool) -> None:
    """Be a dispatcher from the start of a process to its end."""
    dispatch(open_runtime(), recover=recover, on_turn=progress.turn)


def _be_run_worker(progress: Progress, *, queues: tuple[str, ...], options: WorkerOptions, name: str | None) -> None:
    runtime = open_runtime()
    worker = make_worker(
        make_run_worker_class(options.find_worker_class()),
        runtime,
        queues or [runtime.settings.default_queue],
        name=name,
        exception_handlers=options.find_exception_handlers(),
    )
    cast("RunWorker", worker).progress = progress
    cast("RunWorker", worker).runtime = runtime
    end_scheduler_with(worker)
    if name is not None:
        take_over_name(worker)
    _work(worker, runtime, options, with_scheduler=True)


def _be_runner(progress: Progress, *, queues: tuple[str, ...], options: WorkerOptions, slot: Slot) -> None:
    forks = not (slot.is_closing or issubclass(options.find_worker_class(), SpawnWorker))
    starter = HorseStarter(partial(_prepare_horses, queues, options, slot.name)) if forks else None
    runtime = open_runtime()
    worker = _make_runner(runtime, queues, options, slot.name)
    runner = prepare_runner(worker, slot, progress, runtime)
    runner.starter = starter
    runner.max_memory = options.most_memory(resident_bytes())
    if slot.is_closing:
        return
    begin_pulse(runner, os.getppid())
    _work(worker, runtime, options, with_scheduler=options.burst)


def _make_runner(runtime: Runtime, queues: tuple[str, ...], options: WorkerOptions, name: str) -> Worker:
    return make_worker(
        make_runner_class(options.find_worker_class()),
        runtime,
        queues or [runtime.settings.default_queue],
        name=name,
        exception_handlers=options.find_exception_handlers(),
    )


def _prepare_horses(queues: tuple[str, ...], options: WorkerOptions, name: str) -> BeHorse:
    """Prepare the process that forks the horses of a runner: it has opened nothing that a fork must not inherit."""
    runtime = Runtime(Settings())
    import_workflows(runtime.settings)
    runner = cast("Runner", _make_runner(runtime, queues, options, name))
    setup_loghandlers(_RQ_LOG_LEVEL)

    def be_horse(job_id: str, queue: str, execution_id: str) -> None:
        with using(runtime):
            runner.be_horse(job_id, queue, execution_id)

    return be_horse


def _work(worker: Worker, runtime: Runtime, options: WorkerOptions, *, with_scheduler: bool) -> None:
    """Let RQ's loop run, and end this process with the status that tells the supervisor what comes next."""
    with using(runtime):  # for the work horses, which inherit it
        warm_up(runtime)  # and no connection: SQLite loses track of its locks in a fork
        worker.work(
            burst=options.burst,
            max_jobs=options.most_jobs,
            max_idle_time=options.max_idle_time,
            with_scheduler=with_scheduler,
            logging_level=_RQ_LOG_LEVEL,
        )
    if (status := exit_status(cast("PatientWorker", worker), options)) != 0:
        sys.exit(status)


def _be_command_listener(progress: Progress, *, queues: tuple[str, ...], slots: Sequence[Slot]) -> None:
    settings = Settings()
    names = queues or (settings.default_queue,)
    redis = connect(resolve_urls(settings).redis_url)
    listener = CommandListener(redis, make_queues(settings, names, redis), slots, progress)
    listener.run()


def dispatch(runtime: Runtime, *, recover: bool = True, on_turn: Callable[[], None]) -> None:
    """Be a dispatcher until SIGTERM or SIGINT; `recover` makes a pass of reconcile first."""
    dispatcher = Dispatcher(runtime, recover=recover, on_turn=on_turn)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    dispatcher.run()


def dispatch_once() -> None:
    """Make a pass of reconcile, fire what is due, and end."""
    Dispatcher(open_runtime(), recover=True).run_until_idle()


def exit_status(worker: PatientWorker, options: WorkerOptions) -> int:
    """Return how a process whose loop has ended tells the supervisor what comes next."""
    if options.most_jobs is not None and worker.jobs_done >= options.most_jobs:
        return DONE if options.burst and options.max_jobs is not None else RENEW
    if getattr(worker, "is_worn", False):
        return RENEW
    return DONE if worker.is_idle and (options.burst or options.max_idle_time is not None) else 0
