"""Faults of SQL as a whole while the schedules fire: promotions, restored backups, copies.

Every turn names its promise. After each one everything continues, and in the end every occurrence counts.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from redis import Redis

from rqsched.api.scheduler import Scheduler
from tests.support.invariants import check_invariants
from tests.support.processes import Process, rqsched_command, run_to_end, wait_until
from tests.support.servers import PostgresServer
from tests.system.soak.pair import DATABASE, Pair
from tests.system.soak.play import calm_down
from tests.system.soak.report import Report, Turn, make_report
from tests.system.soak.workers import Workers, declare, workers_of_pair

_SOON = 120.0
"""Seconds within which everything goes on after a turn."""
_MARGIN = timedelta(seconds=3)
"""How long before a backup that is missed begins: a link that was due then may have fired just after it."""
REFUSED_AS = {"old primary": "is of an earlier timeline", "clone": "is a copy"}
"""The messages of refused processes."""


@dataclass(frozen=True)
class TurnsPlan:
    """How many turns, over what."""

    turns: int
    schedules: int
    workers: int
    seed: int


class Play:
    """Workers over a pair of servers, and the turns of these."""

    def __init__(self, running: Workers, pair: Pair, scheduler: Scheduler) -> None:
        self.running = running
        self.pair = pair
        self.scheduler = scheduler
        self.refused: list[Process] = []
        """Workers of copies and of old primaries."""

    def executed(self) -> int:
        """How many attempts have begun so far."""
        path = self.running.log_path
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def go_on(self, more: int | None = None) -> None:
        """Wait until so many more attempts have begun; without a number as many as there are schedules."""
        wanted = self.executed() + (more or self.scheduler.count())
        wait_until(lambda: self.executed() >= wanted, timeout=_SOON, interval=0.1, what=f"{wanted} attempts")

    def silence(self, since: float) -> float:
        """Wait for the next attempt; returns the seconds since then."""
        self.go_on(1)
        return time.monotonic() - since

    def command(self, *words: str) -> dict[str, Any]:
        """Run a command of rqsched to its end, and return its JSON."""
        ended = run_to_end(rqsched_command(*words, "-o", "json"), self.running.environment)
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        found: dict[str, Any] = json.loads(ended.stdout) if ended.stdout.startswith("{") else {}
        return found

    def is_refused(self, whose: str, url: str) -> None:
        """A worker of another database ends by itself and says why, having executed nothing."""
        worker = self.running.start(rqsched_command("worker"), RQSCHED_DATABASE_URL=url, SOAK_WHOSE=whose)
        self.refused.append(worker)
        worker.wait_for_log(REFUSED_AS[whose], timeout=_SOON)
        assert worker.wait(timeout=_SOON) != 0, worker.log()

    def refused_of_ours(self) -> list[str]:
        """Return what workers that were right said of being refused: no failover ever is."""
        ours = [worker for worker in self.running.started if worker not in self.refused]
        said = [(worker, text) for worker in ours for text in REFUSED_AS.values() if text in worker.log()]
        return [f"{worker.log_path.name}, of a worker that was right: {text}" for worker, text in said]


def sync(play: Play, turn: Turn) -> None:
    """The primary dies while every commit is confirmed by the standby."""
    play.pair.confirm_by_standby()
    play.go_on()
    _promote(play, turn)


def paused(play: Play, turn: Turn) -> None:
    """The primary dies while the standby has received the commits but not applied them for some seconds."""
    play.pair.standby.execute("SELECT pg_wal_replay_pause()")
    play.go_on()
    _promote(play, turn)


def cut_off(play: Play, turn: Turn) -> None:
    """The primary dies while the standby has not heard of it for some seconds: the commits of that time are lost."""
    play.pair.cut_off_standby()
    play.go_on()
    _promote(play, turn)


def _promote(play: Play, turn: Turn) -> None:
    """The standby is promoted, all workers follow; the old primary comes back, and a worker of it is refused."""
    since = time.monotonic()
    old = play.pair.promote()
    turn.silence_seconds = play.silence(since)
    play.go_on()
    old.start()
    play.is_refused("old primary", old.url(DATABASE))
    turn.refused += 1
    play.go_on()
    play.pair.follow()


def restore(play: Play, turn: Turn, *, is_flushed: bool, is_missed: bool) -> None:
    """SQL is set back to a backup, in the order of docs/backup.md; Redis stays, or is empty."""
    backed_up_at, primary = play.scheduler.runtime.now(), play.pair.primary
    dump = play.running.folder / "backup.dump"
    _dump(primary, dump)
    play.go_on()
    since = time.monotonic()
    play.command("freeze", "--everything", "--reason", "restore")
    play.running.stop()
    play.scheduler.runtime.database.close()
    primary.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    _restore(primary, dump, DATABASE)
    with Redis.from_url(play.running.valkey.url) as redis:
        if is_flushed:
            redis.flushall()
        passed = play.scheduler.runtime.transport.interval_key
        redis.delete(passed)
        ran = play.executed()
        play.command("db", "adopt", "--yes")
        play.command("freeze", "--everything", "--reason", "restored, to be looked at")
        play.running.start_missing()
        for worker in play.running.running:
            worker.wait_for_log("nothing begins here", timeout=_SOON)
        wait_until(lambda: redis.exists(passed), timeout=_SOON, what="a pass")
    how = ["--missed", "none", "--since", (backed_up_at - _MARGIN).isoformat()] if is_missed else []
    found = play.command("thaw", "--everything", "--preview", *how)
    assert found["schedules"], found
    assert play.executed() == ran, "something began in the freeze"
    play.command("thaw", "--everything", *how, *(["--cancel-pending"] if is_missed else []))
    turn.silence_seconds = play.silence(since)
    play.go_on()


def clone(play: Play, turn: Turn) -> None:
    """A copy of the database meets the Redis of its original."""
    primary, dump = play.pair.primary, play.running.folder / "clone.dump"
    _dump(primary, dump)
    _restore(primary, dump, "clone")
    play.is_refused("clone", primary.url("clone"))
    turn.refused += 1
    play.go_on()
    primary.drop_database(primary.url("clone"))


KINDS: dict[str, tuple[Callable[[Play, Turn], None], bool]] = {
    "promotion, synchronous": (sync, False),
    "promotion, asynchronous, replay paused": (paused, False),
    "promotion, asynchronous, cut off": (cut_off, True),
    "restore, same Redis, missed": (partial(restore, is_flushed=False, is_missed=True), False),
    "restore, empty Redis, missed": (partial(restore, is_flushed=True, is_missed=True), False),
    "restore, same Redis, by policy": (partial(restore, is_flushed=False, is_missed=False), True),
    "restore, empty Redis, by policy": (partial(restore, is_flushed=True, is_missed=False), True),
    "clone": (clone, False),
}
"""Each kind of turn by its name in the report, and whether what ran before may run a second time."""


def play_turns(plan: TurnsPlan, folder: Path, *, say: Callable[[str], None] = lambda text: None) -> Report:
    """Play the turns, one kind after the other, and account for every occurrence."""
    folder.mkdir(parents=True, exist_ok=True)
    began, turns = time.monotonic(), list[Turn]()
    with (
        workers_of_pair(folder, plan.workers) as (running, pair),
        Scheduler(settings=running.settings) as scheduler,
    ):
        play = Play(running, pair, scheduler)
        declare(scheduler, plan.schedules, Random(plan.seed), every=(2, 5))
        play.go_on()
        for name, (act, may_repeat) in islice(cycle(KINDS.items()), plan.turns):
            turn = Turn(name, scheduler.runtime.now(), may_repeat)
            turns.append(turn)
            act(play, turn)
            say(f"{time.monotonic() - began:7.1f} s  {name}: silent for {turn.silence_seconds:.1f} s")
        calm_down(running, scheduler)
        report = make_report(scheduler.runtime, running.log_path, turns)
        try:
            check_invariants(scheduler.runtime)
        except AssertionError as broken:
            report.problems.append(str(broken))
    report.problems += play.refused_of_ours()
    report.parameters, report.seconds = asdict(plan), round(time.monotonic() - began, 1)
    return report


def _dump(server: PostgresServer, path: Path) -> None:
    _run(server, "pg_dump", "--format", "custom", "--file", str(path), DATABASE)


def _restore(server: PostgresServer, path: Path, name: str) -> None:
    server.create_database(name)
    _run(server, "pg_restore", "--exit-on-error", "--dbname", name, str(path))


def _run(server: PostgresServer, program: str, *words: str) -> None:
    where = ["--host", "127.0.0.1", "--port", str(server.port), "--username", "postgres"]
    subprocess.run([server.binaries / program, *where, *words], check=True, capture_output=True, text=True)
