"""A world to look at: failures, retries, skips, misses, a pause, two zones around a change of clocks.

It happens by a manual clock: `build` fires and executes four days of schedules up to `NOW`, and leaves a fan-out and a
backfill half done and one run in the hands of a worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from rq import Queue, SimpleWorker
from rq.utils import utcformat
from rq.worker import WorkerStatus

from rqsched import CommandContext, Cron, Every, Once, RetryPolicy, Scheduler
from rqsched.features.backfill.chain import BackfillRange
from rqsched.kernel.chain.runtime import using
from rqsched.testing import ManualClock, execute_pending
from rqsched.workflows import make_workflow

NOW = datetime(2026, 10, 25, 9, 50, tzinfo=UTC)
"""The morning on which Berlin's clocks went back; New York's follow a week later."""
BEGIN = NOW - timedelta(days=4)
_SECOND, _MINUTE, _STEP = timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=5)
LONG_ID = "eu-west-1.customer-lifecycle.subscription-renewals.reconcile-with-the-payment-provider"
QUEUES = ("default", "mail", "reports", "search")
_BY_ADA = CommandContext(principal="ada", source="cli", reason="the vendor moves its API this week")
_AGAIN = CommandContext(principal="ada", source="dashboard", reason="the mail server was away last night")


_BY_GRACE = CommandContext(principal="grace", source="dashboard", reason="usage of September was counted twice")
_CUSTOMERS = [f"customer-{number}" for number in range(1001, 1181)]
_UNREACHABLE = {"customer-1017", "customer-1042"}


class _Hand(SimpleWorker):
    """A worker of a name of its own in this process, which leaves signals and commands alone."""

    def _install_signal_handlers(self) -> None:
        """Leave Ctrl-C to this process."""

    def subscribe(self) -> None:
        """Start no listener."""

    def unsubscribe(self) -> None:
        """There is no listener to stop."""


def _name(queue: str) -> str:
    return f"worker-{queue}-1"


class Showcase:
    """Workflows that take time by the manual clock, and fail as real ones do."""

    def __init__(self, scheduler: Scheduler, clock: ManualClock) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._random = random.Random(26)
        self._look: Callable[[], object] | None = None

    def build(self) -> None:
        """Register, create, let four days pass, and leave the last of it half done."""
        self._register()
        self._create()
        self._scheduler.calendars.set(
            "holidays", ["2026-01-01", "2026-04-03/2026-04-06", "2026-12-24/2026-12-26", "Sun", "Sat 00:00-12:00"],
            description="the bank is closed", reaches=date(2026, 12, 31), context=_AGAIN,
        )  # fmt: skip
        self._live(NOW - timedelta(hours=20), *QUEUES)
        self._clock.advance(timedelta(hours=3))  # no dispatcher is alive: what fires each hour is missed
        self._live(NOW - timedelta(hours=10), *QUEUES)
        # No worker of mail is alive for some hours: a run waits, and later occurrences are skipped.
        self._live(NOW - timedelta(hours=7), *(name for name in QUEUES if name != "mail"))
        self._live(NOW - timedelta(minutes=50), *QUEUES)
        self._backfill()
        self._live(NOW, *(name for name in QUEUES if name != "reports"))
        self._fan_out()

    def _live(self, until: datetime, *queues: str) -> None:
        """Fire the due schedules until then. Most ticks fire none, so start a worker only if a run waits."""
        redis = self._scheduler.runtime.transport.redis
        while True:
            self._scheduler.tick()
            if any(Queue(name, connection=redis).count for name in queues):
                execute_pending(self._scheduler, *queues)
            now = self._clock.now()
            if now >= until:
                return
            self._clock.set(min(until, now + _STEP - (now - BEGIN) % _STEP))

    def _backfill(self) -> None:
        """One chunk of a backfill, of which some runs have ended."""
        usage = self._scheduler.get("usage-rollup")
        until = NOW - timedelta(days=4)
        next(iter(usage.backfill_in_chunks(BackfillRange(until - timedelta(days=32), until, context=_BY_GRACE))))
        self._work("reports", 6)

    def _fan_out(self) -> None:
        """A fan-out of which a part of the targets has ended."""
        self._scheduler.get("renewal-reminders").trigger(context=_AGAIN)
        self._work("mail", 75)

    def _work(self, queue: str, most: int) -> None:
        """Execute so many jobs of a queue."""
        with using(self._scheduler.runtime):
            self._hand(queue).work(burst=True, max_jobs=most, logging_level="CRITICAL")

    def _hand(self, queue: str) -> SimpleWorker:
        redis = self._scheduler.runtime.transport.redis
        return _Hand([queue], connection=redis, name=_name(queue))

    def show(self, look: Callable[[], object]) -> None:
        """Call `look` while a worker executes a run and others wait for work; an error of it is raised here."""
        self._look = look
        self._scheduler.get("rebuild-search-index").trigger()
        for queue in QUEUES:
            if queue != "search":
                worker = self._hand(queue)
                worker.register_birth()
                worker.set_state(WorkerStatus.IDLE)
                self._date(worker.name)
        self._work("search", 1)
        run = self._scheduler.get("rebuild-search-index").runs(1).items[0]
        if run.status != "succeeded":
            raise RuntimeError(run.error)

    def _date(self, name: str) -> None:
        """Date a worker's heartbeat by our clock: RQ reads the machine's, and the pages compare."""
        at = utcformat(self._clock.now() - 7 * _SECOND)
        self._scheduler.runtime.transport.redis.hset(f"rq:worker:{name}", "last_heartbeat", at)

    def _register(self) -> None:
        add = self._scheduler.runtime.workflows.add
        for name, workflow in {
            "invoices.sync": self._works(40, 140),
            "digests.send": self._works(4, 30, 0.3, TimeoutError, "smtp.example.org did not answer within 10 s"),
            "database.back_up": self._works(60, 200, 0.03, RuntimeError, "pg_dump: error: connection refused"),
            "reports.build": self._works(15, 60),
            "crm.sync": self._works(20, 90, 0.97, ConnectionError, "crm.example.com: 503 Service Unavailable"),
            "partners.import": self._works(5, 9, 1.0, KeyError, "customer_id"),
            "probe": self._works(0.1, 0.8),
            "bounces.read": self._works(2, 9),
            "usage.roll_up": self._works(2, 6),
            "search.rebuild": self._rebuild,
        }.items():
            add(make_workflow(name, workflow))
        add(make_workflow("renewals.remind", self._remind, targets=lambda: _CUSTOMERS))

    def _works(
        self, least: float, most: float, fails: float = 0.0, error: type[Exception] = RuntimeError, message: str = ""
    ) -> Callable[..., Any]:
        # An error of its own for each failure: the traceback of one that is raised again grows each time.
        def run(**given: Any) -> dict[str, Any]:
            self._clock.advance(_SECOND * self._random.uniform(least, most))
            if self._random.random() < fails:
                raise error(message)
            return {"rows": self._random.randint(12, 9400), **given}

        return run

    def _rebuild(self) -> dict[str, Any]:
        """Take long; the last one takes as long as somebody looks."""
        if self._look is not None:
            self._date(_name("search"))
            self._look()
        else:
            self._clock.advance(_SECOND * self._random.uniform(600, 1500))
        return {"documents": self._random.randint(80_000, 90_000)}

    def _remind(self, customer: str) -> None:
        self._clock.advance(_SECOND * self._random.uniform(0.2, 0.9))
        if customer in _UNREACHABLE:
            raise ConnectionRefusedError(f"mx.example.net: 550 no such mailbox: {customer}@example.net")

    def _create(self) -> None:
        create, patient = self._scheduler.create, RetryPolicy(max_retries=3, base=_MINUTE)
        create(
            "nightly-invoices", "invoices.sync", Cron("0 2 * * MON-FRI"), timezone="America/New_York",
            kwargs={"region": "us"}, labels={"team": "billing"}, owner="ada",
            description="Brings the invoices of all regions into the ledger",
        )  # fmt: skip
        create(
            "early-digest", "digests.send", Cron("30 2 * * *"), timezone="Europe/Berlin", retry=patient,
            labels={"team": "growth"}, description="02:30 happens twice on the night the clocks go back, and runs once",
        )  # fmt: skip
        create("digests", "digests.send", "0 */2 * * *", retry=patient, labels={"team": "growth"})
        create("database-backup", "database.back_up", "15 * * * *", labels={"team": "platform"}, retry=patient)
        create("tokyo-report", "reports.build", "0 9 * * *", timezone="Asia/Tokyo", labels={"team": "finance"})
        create("crm-sync", "crm.sync", Every("90m"), retry=RetryPolicy(max_retries=1, base=_MINUTE))
        create(
            "partner-import", "partners.import", "0 5 * * *", labels={"team": "partners"},
            retry=RetryPolicy(max_retries=0, then="dead"),
        )  # fmt: skip
        create("rebuild-search-index", "search.rebuild", Every("5h"), labels={"team": "platform"}, queue="search")
        create("usage-rollup", "usage.roll_up", "5 * * * *", overlap="allow_all", queue="reports", owner="grace")
        create(
            "renewal-reminders", "renewals.remind", "0 7 * * MON", timezone="America/New_York", queue="mail",
            fan_out="all_failed", labels={"team": "billing"},
            description="One mail for each customer who renews this week",
        )  # fmt: skip
        create(
            LONG_ID, "reports.build",
            "45 3 * * *", timezone="Europe/Berlin", labels={"team": "billing", "region": "eu-west-1"},
        )  # fmt: skip
        create("probe-the-shop", "probe", Every("1h"))
        create("read-bounced-mail", "bounces.read", "*/30 * * * *", queue="mail", labels={"team": "growth"})
        create("month-end", "reports.build", "0 18 L * *", timezone="Europe/Berlin", labels={"team": "finance"})
        create("new-year", "reports.build", Once(datetime(2027, 1, 1, tzinfo=UTC)))
        create("vendor-import", "partners.import", "30 6 * * *", labels={"team": "partners"}).pause(
            reason=_BY_ADA.reason, until=NOW + timedelta(days=2), context=_BY_ADA
        )
