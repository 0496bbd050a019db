"""Growth: the cost of an operation among many schedules with many runs, as a ratio to few.

    python -m benchmarks.growth --smallest 1000 --largest 1000000 --runs 10 --rounds 10

A fire, a create, a page of the list, of a schedule's history and of its runs, a recover pass when nothing is wrong, and
a step of pruning, on PostgreSQL. Each schedule has as many ended runs and audit events as `--runs` says. The rows are
copies that PostgreSQL makes of one of each, so that ten million of them take minutes. A database of each size, measured
in turn. The aim is at most 1.2 for every operation. `hot_updates` are those that touched no index, of all that were
made while this was measured.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import sqlalchemy as sa

from benchmarks.lab import START, Lab, arguments, fill, fire_all, lab, minutes, ratio, report, summary
from benchmarks.scale import FAR, FIRES, SOON, milliseconds
from rqsched import Scheduler
from rqsched.features.pruning.chain import Pruned, Pruning, prune
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.retention import Retention
from rqsched.kernel.store.database import without_limits
from rqsched.kernel.store.tables import audit_events, runs, schedules
from rqsched.testing import ManualClock

WARM = 2
_UIDS = "upper(lpad(to_hex({number}), 26, '{first}'))"


@dataclass
class Site:
    """A database of one size, with a Redis of its own."""

    runtime: Runtime
    scheduler: Scheduler
    clock: ManualClock
    pruning: Iterator[Pruned]
    """Keeps half of the runs of each schedule."""

    def round(self, number: int) -> dict[str, list[float]]:
        """Measure each operation: microseconds a fire, milliseconds a call of the others."""
        handle = self.scheduler.get("far-7")
        name = f"new-{number}"
        return {
            "fire_us": [self.fire(number)],
            "create_ms": milliseconds(lambda call: self.scheduler.create(f"{name}-{call}", "benchmark-noop", FAR)),
            "list_page_ms": milliseconds(lambda _: self.scheduler.list(limit=50)),
            "history_page_ms": milliseconds(lambda _: handle.history(limit=100)),
            "runs_page_ms": milliseconds(lambda _: handle.runs(limit=100)),
            "recover_pass_ms": milliseconds(lambda _: recover(self.runtime), 1),
            "prune_step_ms": self.prune(),
        }

    def fire(self, number: int) -> float:
        """Fire a batch while all the others are far from due."""
        self.clock.set(START)
        fill(self.runtime, FIRES, SOON, prefix=f"due-{number}-")
        self.clock.advance(minutes(1))
        return fire_all(self.runtime, FIRES) / FIRES * 1e6

    def prune(self) -> list[float]:
        """Take a step of pruning, where the last one ended; among 1 000 schedules of ten runs there are ten."""
        started = time.perf_counter()
        is_over = next(self.pruning, None) is None
        return [] if is_over else [(time.perf_counter() - started) * 1000]

    def hot(self) -> dict[str, float]:
        """Give the share of updates that touched no index, by table."""
        query = sa.text("SELECT relname, n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE n_tup_upd > 0")
        rows = self.runtime.database.read(lambda connection: list(connection.execute(query)))
        return {name: round(hot / all_, 2) for name, hot, all_ in rows if name.startswith("rqsched_")}


def copy_rows(connection: sa.Connection, table: sa.Table, count: int, said: dict[str, str], where: str) -> None:
    """Have PostgreSQL copy one row so many times; `said` are columns as expressions of `g`, from 1 on."""
    names = [column.name for column in table.columns]
    values = ", ".join(said.get(name, f"t.{name}") for name in names)
    columns = ", ".join(f'"{name}"' for name in names)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM {table.name} t, generate_series(1, {count}) g "
        f"WHERE {where}"
    )


def multiply(runtime: Runtime, clock: ManualClock, size: int, each: int) -> None:
    """Make `size` schedules with so many ended runs and events each, all alike."""
    fill(runtime, 1, SOON, prefix="template")
    clock.advance(minutes(1))
    fire_all(runtime, 1)
    clock.set(START)
    far = "timestamptz '2027-01-01 00:00Z'"
    schedule_uid = _UIDS.format(number=f"(g - 1) / {each} + 1", first="0")
    at = "t.created_at + g * interval '1 microsecond'"
    ended = {"status": "'succeeded'", "started_at": at, "ended_at": at}
    of_one = "t.schedule_uid = (SELECT uid FROM rqsched_schedules WHERE schedule_id = 'template0')"
    number = f"mod(g - 1, {each}) + 1"
    copies: list[tuple[sa.Table, int, dict[str, str], str]] = [
        (
            schedules,
            size,
            {
                "uid": _UIDS.format(number="g", first="0"),
                "schedule_id": "'far-' || g",
                "created_at": at,
                "due_at": far,
                "next_run_at": far,
                "last_run_uid": "NULL",
                "last_instance_id": "NULL",
            },
            "t.schedule_id = 'template0'",
        ),
        (
            runs,
            size * each,
            {
                "uid": _UIDS.format(number="g", first="0"),
                "schedule_uid": schedule_uid,
                "number": number,
                "instance_id": "'far-run-' || g",
                "occurrence_at": at,
                "created_at": at,
                **ended,
            },
            of_one,
        ),
        (
            audit_events,
            size * each,
            {"schedule_uid": schedule_uid, "sequence": number, "recorded_at": at.replace("created", "recorded")},
            f"{of_one} AND t.sequence = 1",
        ),
    ]
    for table, count, said, where in copies:
        with runtime.database.engine.begin() as connection, without_limits(connection):
            copy_rows(connection, table, count, said, where)
            connection.exec_driver_sql(f"ANALYZE {table.name}")


def build(place: Lab, size: int, each: int, number: int, stack: ExitStack) -> Site:
    clock = ManualClock(START)
    runtime = stack.enter_context(place.runtime("postgres", clock, number=number))
    started = time.perf_counter()
    multiply(runtime, clock, size, each)
    recover(runtime)  # arms the copied schedules
    print(f"{size} schedules made in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    scheduler = Scheduler(settings=runtime.settings, clock=clock)
    stack.callback(scheduler.close)
    half = Pruning(retention=Retention.parse(str(max(1, each // 2))))
    return Site(runtime, scheduler, clock, prune(runtime, half))


def main() -> None:
    given = arguments(__doc__, smallest=1_000, largest=1_000_000, runs=10, rounds=10)
    sizes = [given.smallest, given.largest]
    found: dict[int, dict[str, list[float]]] = {size: defaultdict(list) for size in sizes}
    with ExitStack() as stack:
        place = stack.enter_context(lab())
        sites = {size: build(place, size, given.runs, number, stack) for number, size in enumerate(sizes)}
        for number in range(-WARM, given.rounds):
            for size, site in sites.items():
                for name, values in site.round(number).items():
                    found[size][name] += values if number >= 0 else []
        hot = {str(size): site.hot() for size, site in sites.items()}
    few, many = (found[size] for size in sizes)
    report(
        "growth",
        vars(given),
        {
            "by_schedules": {str(n): {name: summary(v, 3) for name, v in found[n].items() if v} for n in sizes},
            "ratios": {name: ratio(values, few[name]) for name, values in many.items() if values and few[name]},
            "hot_updates": hot,
            "aim": "each at most 1.2",
        },
    )


if __name__ == "__main__":
    main()
