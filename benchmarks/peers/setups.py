"""The setups that are compared: which processes each one has. The settings are in the modules `with_...` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EVERY = 5
"""Seconds between the times at which each job is due."""
WHOLE_TIMES, WHOLE_SECONDS, FROM_START = 5.0, 1.0, 0.0
"""The times of a setup are multiples of so many seconds. With 0, they depend on when its scheduler started."""

RQ_WORKER = ("rq", "worker", "--url", "{redis}", "default")
PRELOADED = ("rq", "worker", "-c", "rqsched.preload", "--url", "{redis}", "rqsched", "default")
POLLING = ("rqscheduler", "--url", "{redis}", "--interval", "1")
CRON = ("rq", "cron", "benchmarks.peers.with_rq_cron", "--url", "{redis}")
BEAT = ("celery", "-A", "benchmarks.peers.with_celery_beat", "beat")
CELERY_WORKER = ("celery", "-A", "benchmarks.peers.with_celery_beat", "worker", "--concurrency", "1")
APSCHEDULER = ("python", "-m", "benchmarks.peers.with_apscheduler")
Command = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One way to run one scheduler."""

    name: str
    """The name in the table, which is followed by the word hardened for that variant."""
    variant: str
    """The variable PEERS_VARIANT, by which its module chooses the settings."""
    schedulers: Sequence[Command]
    """The processes that decide when the job runs; the kills hit them in turn."""
    workers: Sequence[Command] = ()
    """The processes that only execute the job."""
    register: Sequence[Command] = ()
    """Commands that a deployment runs before it restarts the processes, such as the step that declares the schedule."""
    makes_up: str
    """How many of the times that pass while nothing runs are made up, by its documentation: none, one or all."""
    admits_second: bool = True
    """Whether its documentation lets a second scheduler run."""
    uses_redis: bool = True
    """Whether it needs Redis."""
    uses_postgres: bool = False
    """Whether it needs PostgreSQL."""
    times: float = WHOLE_TIMES
    """Where its times are."""
    is_ours: bool = False
    """Whether its processes run in the environment of this repository, and not in that of the peers."""

    @property
    def is_hardened(self) -> bool:
        """Tell whether its Redis writes an append-only file, as Redis's documentation on persistence advises."""
        return self.variant != "plain"


DECLARE = ("python", "-c", "from benchmarks.peers import with_rqsched; with_rqsched.declare()")
SCHEDULE = ("python", "-m", "benchmarks.peers.with_rq_scheduler")
SETUPS = (
    Setup(
        name="rqsched",
        variant="plain",
        schedulers=[PRELOADED],
        register=[("rqsched", "db", "upgrade"), DECLARE],
        makes_up="one",
        is_ours=True,
    ),
    Setup(
        name="rqsched",
        variant="hardened",
        schedulers=[("rqsched", "worker", "default")] * 2,
        register=[("rqsched", "db", "upgrade"), DECLARE],
        makes_up="all",
        uses_postgres=True,
        is_ours=True,
    ),
    Setup(
        name="rq-scheduler",
        variant="plain",
        schedulers=[POLLING],
        workers=[RQ_WORKER],
        register=[SCHEDULE],
        makes_up="one",
    ),
    Setup(
        name="rq-scheduler",
        variant="hardened",
        schedulers=[POLLING] * 2,
        workers=[RQ_WORKER],
        register=[SCHEDULE],
        makes_up="one",
    ),
    Setup(
        name="RQ's cron",
        variant="plain",
        schedulers=[CRON],
        workers=[RQ_WORKER],
        makes_up="none",
        times=FROM_START,
    ),
    Setup(
        name="RQ's cron",
        variant="hardened",
        schedulers=[CRON],
        workers=[RQ_WORKER],
        makes_up="none",
    ),
    Setup(
        name="Celery beat",
        variant="plain",
        schedulers=[BEAT],
        workers=[CELERY_WORKER],
        makes_up="one",
        admits_second=False,
        times=WHOLE_SECONDS,
    ),
    Setup(
        name="Celery beat",
        variant="hardened",
        schedulers=[BEAT],
        workers=[CELERY_WORKER],
        makes_up="one",
        admits_second=False,
        times=WHOLE_SECONDS,
    ),
    Setup(
        name="Celery beat with RedBeat",
        variant="redbeat",
        schedulers=[BEAT],
        workers=[CELERY_WORKER],
        makes_up="one",
        times=WHOLE_SECONDS,
    ),
    Setup(
        name="APScheduler",
        variant="plain",
        schedulers=[APSCHEDULER],
        makes_up="none",
        admits_second=False,
        uses_redis=False,
    ),
    Setup(
        name="APScheduler",
        variant="hardened",
        schedulers=[APSCHEDULER],
        makes_up="one",
        admits_second=False,
        uses_redis=False,
        uses_postgres=True,
    ),
)
