"""Sweeps over thousands of targets: killed all the while, and one over the other. Each target has its line."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from rqsched import Every, RetryPolicy, Scheduler
from rqsched.api.schedule_handle import RunHandle
from rqsched.kernel.store import schema_version
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.tables import targets
from tests.support import servers
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import Process, process_tree, wait_until
from tests.support.servers import ValkeyServer
from tests.support.sizes import IS_NIGHTLY, sized
from tests.system.acceptance.live import LiveEnv
from tests.system.acceptance.sweeping import (
    FIRST,
    FOLDER,
    HALF,
    SIZE,
    SWEEP,
    close_gate,
    count_swept,
    read_swept,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(4 * 3_600 if IS_NIGHTLY else 600)]
FULL_SIZE = int(os.environ.get("SWEEP_TARGETS") or sized(600, 100_000))
"""Targets of the sweep that is killed on PostgreSQL without retries. The variable sets the size of all sweeps."""
KILLED_SIZE = int(os.environ.get("SWEEP_TARGETS") or sized(600, 10_000))
"""Targets of the other sweeps that are killed."""
OVERLAPPING_SIZE = sized(200, 10_000)
PATIENCE = 3 * 3_600.0 if IS_NIGHTLY else 400.0
STARTED = re.compile(r"(dispatcher|run-\d+) started with pid (\d+)")
AGAIN = RetryPolicy(max_retries=20, base=timedelta(seconds=1))
CHUNK = min(500, KILLED_SIZE // 10)
WORKERS, RUNNERS = 2, 2
MEBIBYTE = 2**20
GROWTH = 50 * MEBIBYTE
"""The memory by which a process may grow during the sweep."""
ENVIRONMENT = {
    "RQSCHED_IMPORTS": "tests.system.acceptance.sweeping",
    "RQSCHED_RECONCILE_INTERVAL": "3",
    "RQSCHED_HEARTBEAT_INTERVAL": "1",
    "RQSCHED_REPAIR_GRACE": "2",
    "RQSCHED_TARGET_CHUNK": str(CHUNK),
    "RQSCHED_COMPLETION_OUTAGE": "5",
}
"""Faster than the defaults: with them a target whose whole worker died is noticed after a little more than a minute."""


@dataclass
class Sweeper:
    """Workers that are killed while they sweep, and what each of their processes held at most."""

    live: LiveEnv
    valkey: ValkeyServer
    killed: set[int] = field(default_factory=set)
    """The pids of runners that were killed."""
    strikes: Counter[str] = field(default_factory=Counter)
    idle: dict[str, int] = field(default_factory=dict)
    """Resident bytes of each kind of process before the sweep."""
    peak: dict[str, int] = field(default_factory=dict)
    """The most that one of its kind held."""

    def start_missing(self) -> None:
        while len(self._workers) < WORKERS:
            self.live.start_runners(RUNNERS)

    @property
    def _workers(self) -> list[Process]:
        return [process for process in self.live.started if process.is_running]

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """The living processes of all workers with their kinds."""
        return [one for worker in self._workers for one in _processes_of(worker)]

    def measure(self) -> dict[str, int]:
        """Return the most that a living process of each kind has held."""
        found: dict[str, int] = {}
        for kind, process in self.processes():
            found[kind] = max(found.get(kind, 0), _peak_of(process.pid))
        return found

    def watch(self) -> None:
        for kind, size in self.measure().items():
            self.peak[kind] = max(self.peak.get(kind, 0), size)

    def kill(self, kind: str) -> None:
        """SIGKILL every process of a kind."""
        self.watch()
        for process in [process for name, process in self.processes() if name == kind]:
            if kind == "runner":
                self.killed.add(process.pid)
            process.kill()
        self.strikes[kind] += 1

    def kill_redis(self) -> None:
        """SIGKILL Redis, with all that is in it, and start an empty one."""
        self.valkey.kill()
        self.valkey.start()
        self.strikes["redis"] += 1

    def kill_worker(self) -> None:
        """SIGKILL a worker with all its processes, as a machine that vanishes does, and start another one."""
        self.watch()
        self.killed |= {process.pid for kind, process in _processes_of(self._workers[0]) if kind == "runner"}
        self._workers[0].kill_tree()
        self.start_missing()
        self.strikes["worker"] += 1

    def describe(self) -> dict[str, str]:
        """Say in words how much each kind of process held, before and at most."""
        return {kind: f"{self.idle[kind] >> 20} -> {peak >> 20} MiB" for kind, peak in self.peak.items()}


def _processes_of(worker: Process) -> list[tuple[str, psutil.Process]]:
    """The supervisor and its children: a dispatcher and runners, as its log names the newest of each."""
    newest = {name: int(pid) for name, pid in STARTED.findall(worker.log())}
    kinds = {pid: "runner" if name.startswith("run-") else name for name, pid in newest.items()}
    tree = process_tree(worker.pid)
    return [(kinds.get(one.pid, "supervisor"), one) for one in tree if one.pid in kinds or one.pid == worker.pid]


def _peak_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def sweeper(request: pytest.FixtureRequest, own_valkey: ValkeyServer, tmp_path: Path) -> Iterator[Sweeper]:
    """Workers over each database in turn."""
    with _database(request.param, tmp_path) as url:
        environment = {
            **ENVIRONMENT,
            "RQSCHED_DATABASE_URL": url,
            "RQSCHED_REDIS_URL": own_valkey.url,
            FOLDER: str(tmp_path),
        }
        scheduler = Scheduler(database_url=url, redis_url=own_valkey.url)
        with closing(LiveEnv(tmp_path, environment, scheduler)) as live:
            yield Sweeper(live, own_valkey)


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    """An empty database whose dead rows are cleaned up, as in production."""
    if kind == "sqlite":
        yield _with_tables(f"sqlite:///{folder}/rqsched.db")
        return
    with servers.postgres(autovacuum="on") as server:
        yield _with_tables(server.create_database())


def _with_tables(url: str) -> str:
    with closing(Database(url)) as database:
        schema_version.upgrade(database)
    return url


def test_each_target_of_a_sweep_that_is_killed_all_the_while_is_handled_at_most_once(
    sweeper: Sweeper, record_testsuite_property: Callable[[str, object], None]
) -> None:
    size = KILLED_SIZE if sweeper.live.scheduler.runtime.database.dialect.name == "sqlite" else FULL_SIZE
    run = sweep_under_fire(sweeper, record_testsuite_property, size)

    assert run.status == "succeeded", run.error
    counts, lines = run.target_counts or {}, read_swept(sweeper.live.folder)
    assert max(Counter(one.target for one in lines).values()) == 1, "never twice"
    assert counts.get("succeeded", 0) + counts.get("lost", 0) == size, counts
    assert counts.get("lost", 0) <= len(sweeper.killed), "a process that is killed costs the target it handles"
    assert len(lines) >= counts["succeeded"]
    lost = {one.target_id for one in run.targets(limit=200, status="lost").items}
    assert all(one.pid in sweeper.killed for one in lines if one.target in lost)


def test_each_target_of_a_sweep_that_is_killed_all_the_while_is_handled_at_least_once_where_it_is_tried_again(
    sweeper: Sweeper, record_testsuite_property: Callable[[str, object], None]
) -> None:
    run = sweep_under_fire(sweeper, record_testsuite_property, KILLED_SIZE, target_retry=AGAIN)

    assert run.target_counts == {"succeeded": KILLED_SIZE}
    lines = read_swept(sweeper.live.folder)
    assert len({one.target for one in lines}) == KILLED_SIZE
    assert max(Counter((one.target, one.attempt) for one in lines).values()) == 1, "an attempt is made once"
    tried = Counter(one.target for one in lines)
    last = {one.target: one.attempt for one in sorted(lines, key=lambda one: one.attempt)}
    again = [one for one in lines if tried[one.target] > 1 and one.attempt < last[one.target]]
    assert all(one.pid in sweeper.killed for one in again), "never twice without a kill"
    assert len(again) <= len(sweeper.killed)


def sweep_under_fire(
    sweeper: Sweeper, record: Callable[[str, object], None], size: int, *, target_retry: RetryPolicy | None = None
) -> RunHandle:
    """Sweep while processes and Redis are killed: at the half of the resolving, then at equal distances."""
    live = sweeper.live
    live.environment[SIZE] = str(size)
    close_gate(live.folder, HALF)
    sweeper.start_missing()
    options: dict[str, Any] = {} if target_retry is None else {"target_retry": target_retry}
    options |= {"retry": AGAIN, "target_timeout": 10, "fan_out": "never"}
    schedule = live.scheduler.create("sweep", SWEEP, Every("24h"), **options)
    wait_until(lambda: set(sweeper.measure()) == {"supervisor", "dispatcher", "runner"}, timeout=120, what="workers")
    run = present(schedule.trigger().run)
    wait_until(lambda: is_half_resolved(live, size), timeout=PATIENCE, what="half of the targets")
    sweeper.idle = idle_of(sweeper)
    sweeper.kill("runner")
    began = monotonic()

    strikes = [lambda: sweeper.kill("dispatcher"), lambda: sweeper.kill("runner"), sweeper.kill_redis]
    strikes = [*strikes, sweeper.kill_worker, *strikes] if IS_NIGHTLY else strikes
    for number, strike in enumerate(strikes, start=1):
        wanted = number * size // (len(strikes) + 1)

        def has_come(wanted: int = wanted) -> bool:
            sweeper.watch()
            return count_swept(live.folder) >= wanted

        wait_until(has_come, timeout=PATIENCE, interval=0.1, what=f"{wanted} targets\n{live.started[-1].log()[-3000:]}")
        strike()

    def is_over() -> bool:
        sweeper.watch()
        return bool(run.refresh().status not in {"pending", "running", "retrying"})

    wait_until(is_over, timeout=PATIENCE, interval=0.5, what=f"the end\n{live.started[-1].log()[-3000:]}")
    seconds = monotonic() - began
    told = f"{size} targets in {seconds:.0f} s, {dict(sweeper.strikes)}, {run.target_counts}, {sweeper.describe()}"
    record("a sweep under fire", told)
    print(told)
    grown = {kind: peak - sweeper.idle[kind] for kind, peak in sweeper.peak.items()}
    assert max(grown.values()) <= GROWTH, sweeper.describe()
    check_invariants(live.scheduler.runtime)
    return run


def idle_of(sweeper: Sweeper) -> dict[str, int]:
    """Return each kind's least memory while idle. One process resolves targets, so the least is the idle one."""
    found: dict[str, int] = {}
    for kind, process in sweeper.processes():
        size = _peak_of(process.pid)
        found[kind] = min(found.get(kind, size), size)
    return found


def is_half_resolved(live: LiveEnv, size: int) -> bool:
    """Tell whether the targets named before the resolver waits are recorded, except a chunk that is not full."""
    count = sa.select(sa.func.count()).select_from(targets)
    found = live.scheduler.runtime.database.read(lambda connection: connection.execute(count).scalar_one())
    return bool(found > size // 2 - CHUNK)


@pytest.mark.parametrize(
    ("options", "are_together"),
    [
        pytest.param({"overlap": "allow_all"}, True, id="allow_all", marks=pytest.mark.nightly),
        pytest.param({"overlap": "skip", "overlap_until": "dispatched"}, True, id="skip until dispatched"),
        pytest.param(
            {"overlap": "buffer_one", "overlap_until": "dispatched"},
            True,
            id="buffer_one until dispatched",
            marks=pytest.mark.nightly,
        ),
        pytest.param({"overlap": "buffer_one", "overlap_until": "finished"}, False, id="buffer_one until finished"),
    ],
)
def test_each_target_of_two_sweeps_is_handled_once_in_each_of_them(
    sweeper: Sweeper, options: dict[str, Any], are_together: bool
) -> None:
    live = sweeper.live
    live.environment[SIZE] = str(OVERLAPPING_SIZE)
    close_gate(live.folder, FIRST)
    live.start_runners(2)
    schedule = live.scheduler.create("sweep", SWEEP, Every("24h"), **options)
    first = present(schedule.trigger().run)
    wait_until(lambda: first.refresh().dispatched_at is not None, timeout=PATIENCE, what="the first sweep's targets")
    wait_until(lambda: count_swept(live.folder) > 0, timeout=PATIENCE, what="a target that waits")

    second = present(schedule.trigger().run)
    if are_together:
        wait_until(lambda: second.refresh().dispatched_at is not None, timeout=PATIENCE, what="the second's targets")
    else:
        assert second.refresh().status == "buffered"
    (live.folder / FIRST).touch()
    for run in (first, second):
        live.wait_for_status(run, "succeeded", timeout=PATIENCE)

    lines = Counter((one.run_uid, one.target) for one in read_swept(live.folder))
    assert set(lines.values()) == {1}
    assert Counter(uid for uid, _ in lines) == {run.uid: OVERLAPPING_SIZE for run in (first, second)}
    began, ended = second.started_at, first.ended_at
    assert began is not None
    assert ended is not None
    assert (began < ended) is are_together
    check_invariants(live.scheduler.runtime)
