"""A database full of schedules and their history: rows as the library makes them, written in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, product
from typing import Any

import sqlalchemy as sa

from benchmarks.flows import NOOP
from benchmarks.lab import analyse
from rqsched import Cron, Scheduler
from rqsched.kernel.decide.audit import CREATED
from rqsched.kernel.decide.ids import first_uid_at, live_instance_id
from rqsched.kernel.decide.model import dumps
from rqsched.kernel.store.rows import columns_of, insert_rows
from rqsched.kernel.store.tables import audit_events, backfills, runs, schedules

KINDS = 10
"""Workflows, labels and words of ids: one schedule in so many has each."""
LIMITED, PAUSED, FAILED, DONE = 2, 4, 6, 8
"""Four of each ten schedules, by the last digit of their number. The newest run of LIMITED waits in line for the group
GROUP. PAUSED is paused. The newest run of FAILED failed. DONE is completed."""
GROUP = "vendor"
RARE = 5
"""The number of the one schedule that has the rare workflow, label and id; so many are dead, late and blocked."""
_DAY = timedelta(days=1)
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHUNK = 1_000


@dataclass(frozen=True)
class World:
    """Schedules that fire every day, who made them, the runs of each of the last days, and a backfill of one in ten."""

    schedules: int
    """How many."""
    days: int
    """How many runs of each there are."""
    now: datetime
    """The history is before it, the due occurrences after it."""
    events: int = 1
    """How many events of each somebody asked for."""
    failing_days: int = 0
    """On how many of the first days every run failed; on the newest day one in ten did."""

    def build(self, scheduler: Scheduler) -> str:
        """Write everything; returns the uid of a run of the newest day."""
        run = scheduler.create("model", NOOP, Cron("0 12 * * *")).trigger().run
        assert run is not None
        database = scheduler.runtime.database
        model = [database.read(partial(_newest_row, table=table)) for table in (schedules, runs)]
        limited = scheduler.create(
            "limited", NOOP, Cron("0 12 * * *"), limit=GROUP, limit_running=1, overlap="allow_all"
        )
        for _ in range(2):  # the second run waits for the place of the first
            limited.trigger()
        in_line = [database.read(partial(_newest_row, table=table)) for table in (schedules, runs)]
        of_schedules, of_runs = zip(model, in_line, strict=True)
        written = self._schedules(*of_schedules), self._runs(*of_runs), self._events()
        whole = zip((schedules, runs, audit_events), written, strict=True)
        for table, rows in whole:
            while chunk := list(islice(rows, _CHUNK)):
                database.transact(partial(insert_rows, table=table, columns=columns_of(chunk)))
        database.transact(partial(insert_rows, table=backfills, columns=columns_of([*self._backfills()])))
        analyse(scheduler.runtime)
        return self._run_uid(self.schedules // 2, self.days - 1)

    def _schedules(self, model: dict[str, Any], limited: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number in range(self.schedules):
            kind, created = number % KINDS, self._at(number, -1)
            status = {PAUSED: "paused", DONE: "done"}.get(
                kind, "dead" if number // KINDS < RARE and kind == 1 else "active"
            )
            due = self._at(number, self.days) if status == "active" else None
            is_rare, has_failed = number == RARE, kind == FAILED
            yield {
                **(limited if kind == LIMITED else model), "uid": self._uid(created, number),
                "schedule_id": f"{'rare' if is_rare else 'job'}-{number}-{kind}",
                "workflow": "rare" if is_rare else f"workflow-{kind}",
                "labels": '{"team":"rare"}' if is_rare else f'{{"team":"{kind}"}}',
                "status": status, "created_at": created, "updated_at": created, "due_at": due, "next_run_at": due,
                "last_run_uid": self._run_uid(number, self.days - 1), "run_number": self.days,
                "run_count": self.days, "last_outcome": "failed" if has_failed else "succeeded",
                "consecutive_failures": (RARE if number // KINDS < RARE else 1) if has_failed else 0,
                "overdue_since": self.now - _DAY if number < RARE else None,
                "last_run_at": self._at(number, self.days - 1),
            }  # fmt: skip

    def _runs(self, model: dict[str, Any], in_line: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for day in range(self.days):
            for number in range(self.schedules):
                at, is_newest = self._at(number, day), day == self.days - 1
                is_blocked = is_newest and number < RARE
                is_in_line = is_newest and number % KINDS == LIMITED and not is_blocked
                waits = is_blocked or is_in_line
                has_failed = day < self.failing_days or (is_newest and number % KINDS == FAILED)
                status = "failed" if has_failed else "succeeded"
                ended = None if waits else at + timedelta(seconds=20)
                yield {
                    **(in_line if is_in_line else model), "uid": self._run_uid(number, day),
                    "schedule_uid": self._uid(self._at(number, -1), number),
                    "number": day + 1, "instance_id": live_instance_id(f"job-{number}", at), "kind": "scheduled",
                    "occurrence_at": at, "created_at": at, "due_at": at,
                    "queued_at": at, "limit_at": at if is_in_line else None,
                    "started_at": None if waits else at + timedelta(milliseconds=number % 500), "ended_at": ended,
                    "status": "pending" if waits else status, "workflow": f"workflow-{number % KINDS}",
                    "error": "RuntimeError: as usual" if status == "failed" else None,
                    "blocked_at": at if is_blocked else None,
                    "blocked_reason": "no module named 'usual'" if is_blocked else None,
                }  # fmt: skip

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield that each schedule was created, and by whom; further events, spread over the history, say the same."""
        for number, sequence in product(range(self.schedules), range(1, self.events + 1)):
            who = "rare" if number == RARE else f"person-{number % KINDS}"
            at = self._at(number, -1)
            yield {
                "schedule_uid": self._uid(at, number), "sequence": sequence, "event_type": CREATED,
                "recorded_at": at + (sequence - 1) * self.days * _DAY / self.events,
                "payload": dumps({"command_context": {"principal": who, "source": "http"}}),
                "workflow_instance_id": None, "workflow_run_id": None,
            }  # fmt: skip

    def _backfills(self) -> Iterator[dict[str, Any]]:
        for number in range(0, self.schedules, KINDS):
            at = self._at(number, self.days - 1)
            yield {
                "uid": self._run_uid(number, self.days - 1), "schedule_uid": self._uid(self._at(number, -1), number),
                "start_at": at - _DAY, "end_at": at, "overlap": "", "bound": 10, "cursor": at, "status": "done",
                "created_at": at, "updated_at": at,
            }  # fmt: skip

    def _at(self, number: int, day: int) -> datetime:
        """Spread the schedules over each day; the newest run of the last one was just now."""
        return self.now - _DAY * (self.days - 1 - day) - _DAY * (1 - (number + 1) / self.schedules)

    def _run_uid(self, number: int, day: int) -> str:
        return self._uid(self._at(number, day), number)

    @staticmethod
    def _uid(at: datetime, number: int) -> str:
        """Return a uid that sorts by time."""
        digits = "".join(_DIGITS[number >> shift & 31] for shift in range(75, -1, -5))
        return first_uid_at(at)[:10] + digits


def _newest_row(connection: sa.Connection, table: sa.Table) -> dict[str, Any]:
    return dict(connection.execute(sa.select(table).order_by(table.c.uid.desc()).limit(1)).mappings().one())
