"""A world that is interesting to look at: failures, retries, skips, a pause, two zones around a change of clocks.

It happens by a manual clock, in seconds: `build` fires and executes four days of schedules up to `NOW`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from rqsched import CommandContext, Cron, Every, Once, RetryPolicy, Scheduler
from rqsched.testing import ManualClock, run_due
from rqsched.workflows import make_workflow

NOW = datetime(2026, 10, 25, 9, 42, tzinfo=UTC)
"""The morning on which Berlin's clocks went back; New York's follow a week later."""
BEGIN = NOW - timedelta(days=4)
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)
_BY_ADA = CommandContext(principal="ada", source="cli", reason="the vendor moves its API this week")


class Showcase:
    """Workflows that take time by the manual clock, and fail as real ones do."""

    def __init__(self, scheduler: Scheduler, clock: ManualClock) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._random = random.Random(26)

    def build(self) -> None:
        """Register, create, and let four days pass."""
        self._register()
        self._create()
        while self._clock.now() < NOW:
            run_due(self._scheduler)
            self._clock.advance(5 * _MINUTE)
        run_due(self._scheduler)
        self._scheduler.get("rebuild-search-index").trigger()
        self._scheduler.get("partner-import").trigger(force=True)

    def _register(self) -> None:
        for name, workflow in {
            "invoices.sync": self._works(40, 140),
            "digests.send": self._works(4, 30, 0.3, TimeoutError("smtp.example.org did not answer within 10 s")),
            "database.back_up": self._works(60, 200, 0.03, RuntimeError("pg_dump: error: connection refused")),
            "reports.build": self._works(15, 60),
            "crm.sync": self._works(20, 90, 0.93, ConnectionError("crm.example.com: 503 Service Unavailable")),
            "partners.import": self._works(5, 9, 1.0, KeyError("customer_id")),
            "search.rebuild": self._works(600, 1500),
            "probe": self._works(0.1, 0.8),
        }.items():
            self._scheduler.runtime.workflows.add(make_workflow(name, workflow))

    def _works(
        self, least: float, most: float, fails: float = 0.0, error: Exception | None = None
    ) -> Callable[..., Any]:
        def run(**given: Any) -> dict[str, Any]:
            self._clock.advance(_SECOND * self._random.uniform(least, most))
            if error is not None and self._random.random() < fails:
                raise error
            return {"rows": self._random.randint(12, 9400), **given}

        return run

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
        create("rebuild-search-index", "search.rebuild", Every("2h"), labels={"team": "platform"})
        create("probe-the-shop", "probe", Every("1h"))
        create("month-end", "reports.build", "0 18 L * *", timezone="Europe/Berlin", labels={"team": "finance"})
        create("new-year", "reports.build", Once(datetime(2027, 1, 1, tzinfo=UTC)))
        create("vendor-import", "partners.import", "30 6 * * *", labels={"team": "partners"}).pause(
            reason=_BY_ADA.reason, context=_BY_ADA
        )
