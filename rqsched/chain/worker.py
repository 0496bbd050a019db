"""`rqsched worker`: a supervisor with two children, a dispatcher and an RQ worker.

It restarts a child that died or stands still; the children end when it ends, however it ends. SIGTERM lets the
dispatcher finish its batch and the RQ worker its job.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO

from rqsched.chain.dispatcher import Dispatcher
from rqsched.chain.receivers import require_sentry
from rqsched.chain.rq_worker import make_run_worker
from rqsched.chain.runtime import Runtime, import_workflows, using
from rqsched.chain.supervisor import Progress, Role, Supervisor
from rqsched.config import Settings
from rqsched.store import schema_version

DISPATCHER_SILENCE = 30.0
"""Seconds without a turn of its loop after which a dispatcher is replaced; no call of its waits so long."""
RUNS_SILENCE = 120.0
"""The same for the RQ worker, whose loop turns every half minute while a run executes."""
ROLES = ("dispatcher", "runs")


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


def serve(queues: Sequence[str], *, recover: bool = True) -> int:
    """Supervise a dispatcher and an RQ worker on `queues` until SIGTERM or SIGINT; returns the exit code.

    The dispatcher's first act is a pass of reconcile (`recover`), in batches between which it fires. Raises ConfigError
    when the control queue belongs to another database, and at once when the database refuses this process.
    """
    runtime = Runtime(Settings())
    prepare(runtime)
    runtime.close()
    return supervise(queues, recover=recover).run()


def serve_dispatcher(*, recover: bool = True) -> int:
    """Supervise a dispatcher alone, for workers of another kind, until SIGTERM or SIGINT; raises as `serve` does."""
    runtime = Runtime(Settings())
    prepare(runtime)
    runtime.close()
    return Supervisor([Role("dispatcher", partial(be_dispatcher, recover=recover), DISPATCHER_SILENCE)]).run()


def supervise(
    queues: Sequence[str],
    *,
    recover: bool = True,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    beside: Sequence[Role] = (),
) -> Supervisor:
    """Prepare the supervisor of a dispatcher and an RQ worker; `output` and `environment` are its children's.

    `beside` are more roles that it keeps alive.
    """
    return Supervisor(
        [
            Role("dispatcher", partial(be_dispatcher, recover=recover), DISPATCHER_SILENCE),
            Role("runs", partial(_be_run_worker, queues=tuple(queues)), RUNS_SILENCE),
            *beside,
        ],
        output=output,
        environment=environment,
    )


def be_dispatcher(progress: Progress, *, recover: bool) -> None:
    """Be a dispatcher from the start of a process to its end."""
    dispatch(open_runtime(), recover=recover, progress=progress)


def _be_run_worker(progress: Progress, *, queues: tuple[str, ...]) -> None:
    runtime = open_runtime()
    work(runtime, queues or [runtime.settings.default_queue], progress=progress)


def dispatch(runtime: Runtime, *, recover: bool = True, progress: Progress | None = None) -> None:
    """Be a dispatcher until SIGTERM or SIGINT; `recover` makes a pass of reconcile first."""
    dispatcher = Dispatcher(runtime, recover=recover, on_turn=(progress or Progress()).turn)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stop())
    dispatcher.run()


def dispatch_once() -> None:
    """Make a pass of reconcile, fire what is due, and end."""
    Dispatcher(open_runtime(), recover=True).run_until_idle()


def work(runtime: Runtime, queues: Sequence[str], *, progress: Progress | None = None) -> None:
    """Be an RQ worker with RQ's own scheduler, for the user's own jobs too."""
    worker = make_run_worker(runtime, queues, progress or Progress())
    with using(runtime):  # for the work horses, which inherit it
        runtime.database.close()  # and no connection: SQLite loses track of its locks in a fork
        worker.work(with_scheduler=True, logging_level="WARNING")
