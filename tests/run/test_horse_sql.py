"""A worker writes the claim and success to SQL for its horse, even if either dies, freezes or sends nonsense."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from rqsched.features.list import make_runtime
from rqsched.kernel.chain.attempt import NotAnsweredError
from rqsched.kernel.chain.execution import execute, write_claim
from rqsched.kernel.chain.settle import write_end
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.model import Run
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store.database import Database
from rqsched.run import horse_sql
from rqsched.run.horse_sql import LONGEST, HorseSide, WorkerSide
from rqsched.run.work_horse import wait_for_end
from tests.support.children import FORK, in_children
from tests.support.env import ONCE, Env, job_id
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.processes import wait_until

T = TypeVar("T")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@dataclass
class Ended:
    """The report of a horse after its job."""

    connected: int
    """The number of SQL connections it opened."""
    logged: list[str]
    """Its log lines about the run."""


@dataclass
class Horse:
    """A horse that executes one run, forked by this process, which is its worker."""

    env: Env
    run: Any
    kind: type[WorkerSide] = WorkerSide
    side: WorkerSide = field(init=False)
    process: Any = field(init=False)
    answers: Any = field(init=False)

    def __post_init__(self) -> None:
        self.env.runtime.database.ping()  # as in a worker that has served one before
        self.side = self.kind(self.env.runtime, job_id(self.run.state))
        self.answers = FORK.SimpleQueue()
        self.process = FORK.Process(target=self._be_horse, daemon=True)
        self.process.start()
        self.side.after_fork_in_worker()

    def _be_horse(self) -> None:
        connected: list[object] = []
        sa.event.listen(self.env.runtime.database.engine, "connect", lambda raw, _: connected.append(raw))
        logged: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("rqsched.runs").setLevel(logging.INFO)
        logging.getLogger("rqsched.runs").addHandler(handler)
        self.side.after_fork_in_horse()
        try:
            execute(self.env.runtime, job_id(self.run.state))
        finally:
            self.answers.put(Ended(len(connected), logged))

    def serve(self, *, times: int | None = None) -> None:
        """Answer until the horse has ended, or so many times."""
        answered = 0

        def answer() -> None:
            nonlocal answered
            answered += 1
            self.side.answer()

        def beside() -> dict[int, Callable[[], object]]:
            if times is not None and answered >= times:
                raise StopIteration
            return {} if self.side.descriptor is None else {self.side.descriptor: answer}

        try:
            wait_for_end(self.process.pid, beside, lambda: None)
        except StopIteration:
            return

    def end(self) -> Ended:
        """Wait for its end."""
        ended: Ended = self.answers.get()
        self.process.join(60)
        self.side.close()
        return ended


class DiesBeforeItAnswers(WorkerSide):
    """The side of a worker that dies between its second commit and the answer."""

    def _send(self, answer: bytes) -> None:
        if b"Claim" in answer:
            super()._send(answer)
        else:
            self.close()


class Impatient(WorkerSide):
    """The side of a horse that waits half a second for an answer."""

    answer_seconds = 0.5


class InterruptibleDatabase(Database):
    """A database whose transactions fail where an alarm is set."""

    def _once(self, work: Callable[[sa.Connection], T], *, is_read_only: bool = False, is_alone: bool = False) -> T:
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        return super()._once(work, is_read_only=is_read_only, is_alone=is_alone)


def row(env: Env, run: Any) -> Run:
    return env.run_row(run.uid)


def test_short_run_is_claimed_and_recorded_without_a_connection_of_its_horse(any_env: Env) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve()
    ended = horse.end()

    assert ended.connected == 0
    assert [line.split(":")[0] for line in ended.logged] == ["run started", "run succeeded"]
    assert (run.refresh().status, any_env.state(schedule).success_count) == ("succeeded", 1)
    assert str(row(any_env, run).worker).endswith(f":{horse.process.pid}"), "it is the horse that executes it"
    check_invariants(any_env.runtime)


def test_worker_that_is_gone_before_the_claim_is_done_without(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    horse = Horse(any_env, run)

    horse.side.close()

    assert horse.end().connected > 0
    assert run.refresh().status == "succeeded"


@pytest.mark.parametrize("overlap", ["skip", "buffer_all"])
def test_end_of_a_run_is_recorded_by_its_horse_when_the_worker_has_died_since_the_claim(
    any_env: Env, overlap: str
) -> None:
    schedule = any_env.create(overlap=overlap)
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve(times=1)
    horse.side.close()

    assert horse.end().connected > 0
    assert (run.refresh().status, any_env.state(schedule).success_count) == ("succeeded", 1)
    check_invariants(any_env.runtime)


def test_end_that_a_worker_recorded_before_it_died_is_recognised_and_told_once(any_env: Env) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run, DiesBeforeItAnswers)

    horse.serve()
    ended = horse.end()

    assert ended.connected > 0
    assert [line.split(":")[0] for line in ended.logged] == ["run started", "run succeeded"]
    assert (run.refresh().status, any_env.state(schedule).success_count) == ("succeeded", 1)
    check_invariants(any_env.runtime)


@pytest.mark.parametrize("times", [0, 1])
def test_worker_that_froze_holds_up_no_run_and_changes_nothing_when_it_wakes(any_env: Env, times: int) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run, Impatient)
    horse.serve(times=times)

    wait_until(lambda: run.refresh().status == "succeeded", what="the end of the run")
    before = row(any_env, run), any_env.state(schedule)
    horse.serve()

    assert horse.end().connected > 0
    assert (row(any_env, run), any_env.state(schedule)) == before
    check_invariants(any_env.runtime)


def test_request_that_is_answered_after_its_horse_had_done_it_changes_nothing(any_env: Env) -> None:
    """The worker was frozen from before the claim until after the end of the run."""
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    side, horses = _connected(any_env, run)
    token = new_uid(any_env.runtime.now())
    _ask(horses, {"token": token, "worker": "here:1"})
    job = job_id(run.state)
    claim = present(write_claim(any_env.runtime, job, token, "here:1"))
    late = WorkerSide(any_env.runtime, job)
    late._claim = claim
    at = any_env.runtime.now()
    any_env.advance()
    success = AttemptResult(AttemptOutcome.SUCCEEDED)
    assert write_end(any_env.runtime, claim, success, at=at, is_repeated=True, patience=any_env.runtime.end_patience)[1]
    before = row(any_env, run), any_env.state(schedule)

    side.answer()
    late._perform({"result": None, "at": at.isoformat()})

    assert (row(any_env, run), any_env.state(schedule)) == before
    side.close()
    late.close()
    check_invariants(any_env.runtime)


def _connected(env: Env, run: Any) -> tuple[WorkerSide, socket.socket]:
    side = WorkerSide(env.runtime, job_id(run.state))
    horses = side._horses.dup()
    side.after_fork_in_worker()
    return side, horses


def _ask(horses: socket.socket, request: dict[str, Any]) -> None:
    text = json.dumps(request).encode()
    horses.sendall(horse_sql._HEAD.pack(len(text)) + text)


def test_horse_that_dies_after_it_reported_its_success_has_succeeded(any_env: Env) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)
    horse.serve(times=1)
    wait_until(lambda: _has_asked(horse), what="the report of the end")

    os.kill(horse.process.pid, signal.SIGKILL)
    horse.serve()
    horse.process.join(60)

    assert (run.refresh().status, any_env.state(schedule).success_count) == ("succeeded", 1)
    horse.side.close()


def _has_asked(horse: Horse) -> bool:
    try:
        return bool(horse.side._own.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("size", [LONGEST // 4, 2 * LONGEST], ids=["fits", "too long"])
def test_run_with_long_arguments_is_executed_once(any_env: Env, size: int) -> None:
    any_env.register("long", lambda text: len(text))
    schedule = any_env.create(workflow="long", args=["x" * size])
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve()
    ended = horse.end()

    assert (run.refresh().status, run.result) == ("succeeded", size)
    assert (ended.connected > 0) == (size > LONGEST)
    assert any_env.state(schedule).success_count == 1


def test_long_result_is_recorded_by_the_horse_itself(any_env: Env) -> None:
    any_env.register("long", lambda: '"' * (LONGEST * 2 // 5))  # four bytes each on its way, two in SQL
    run = any_env.fire_next(any_env.create(workflow="long"))
    horse = Horse(any_env, run)

    horse.serve()

    assert horse.end().connected > 0
    assert run.refresh().status == "succeeded"


def test_failure_is_recorded_by_the_horse_itself(any_env: Env) -> None:
    def fail() -> None:
        raise ValueError("not today")

    any_env.register("fail", fail)
    schedule = any_env.create(workflow="fail", retry=ONCE)
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve()

    assert horse.end().connected > 0
    assert run.refresh().status == "failed"
    assert any_env.state(schedule).error_count == 1


@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_success_of_a_run_that_was_ended_meanwhile_is_not_recorded(any_env: Env, end: str) -> None:
    schedule = any_env.create()
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)
    horse.serve(times=1)

    getattr(run, end)()
    horse.serve()
    ended = horse.end()

    assert run.refresh().status == {"cancel": "cancelled", "terminate": "terminated"}[end]
    assert any_env.state(schedule).success_count == 0
    assert [line.split(":")[0] for line in ended.logged] == ["run started"]
    check_invariants(any_env.runtime)


def test_waiting_run_is_started_by_the_end_that_a_worker_records(any_env: Env) -> None:
    schedule = any_env.create(overlap="buffer_all")
    run = any_env.fire_next(schedule)
    any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve()

    assert horse.end().connected == 0
    assert [one.status for one in schedule.runs().items] == ["pending", "succeeded"]
    assert len(any_env.queued()) == 2
    check_invariants(any_env.runtime)


def test_workflow_that_asks_the_scheduler_opens_a_connection_of_its_own(any_env: Env) -> None:
    def ask() -> str:
        return any_env.scheduler.get(schedule.schedule_id).status

    any_env.register("ask", ask)
    schedule = any_env.create(workflow="ask")
    run = any_env.fire_next(schedule)
    horse = Horse(any_env, run)

    horse.serve()

    assert horse.end().connected == 1
    assert (run.refresh().status, run.result) == ("succeeded", "active")


def test_worker_closes_where_a_horse_sends_nonsense(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    for nonsense in (b"\xff" * 100, horse_sql._HEAD.pack(2) + b"no", horse_sql._HEAD.pack(2) + b"[]"):
        side, horses = _connected(any_env, run)
        horses.sendall(nonsense)
        side.answer()
        asking = HorseSide(any_env.runtime, horses)
        with pytest.raises(NotAnsweredError):
            asking.claim(job_id(run.state), "token", "worker")
        side.close()
    assert run.refresh().status == "pending"


def test_late_answer_of_a_worker_is_not_taken_for_that_of_the_next_question(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    side, horses = _connected(any_env, run)
    asking = HorseSide(any_env.runtime, horses, seconds=0.1)
    with pytest.raises(NotAnsweredError):
        asking.claim(job_id(run.state), new_uid(any_env.runtime.now()), "here:1")

    side.answer()

    with pytest.raises(NotAnsweredError):
        asking.end(AttemptResult(AttemptOutcome.SUCCEEDED), any_env.runtime.now())
    assert run.refresh().status == "running"
    side.close()


@pytest.mark.postgres
def test_connection_of_a_worker_ends_with_the_worker_though_its_horse_lives(
    postgres_env: Env,
) -> None:
    run = postgres_env.fire_next(postgres_env.create())
    with postgres_env.runtime.database.engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        descriptor = raw.fileno()
    side = WorkerSide(postgres_env.runtime, job_id(run.state))

    def holds() -> bool:
        side.after_fork_in_horse()
        try:
            return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
        except OSError:
            return False

    assert in_children(1, holds) == [False]
    side.close()


def test_alarm_of_a_worker_is_off_while_it_writes_and_set_again_afterwards(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    replaced = any_env.runtime.database
    any_env.runtime.database = any_env.runtime.ownership.database = InterruptibleDatabase(replaced.url)
    replaced.close()
    side, horses = _connected(any_env, run)
    _ask(horses, {"token": new_uid(any_env.runtime.now()), "worker": "here:1"})
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(100)

    side.answer()

    assert 90 < signal.alarm(0) <= 100
    signal.signal(signal.SIGALRM, before)
    assert run.refresh().status == "running"
    side.close()


def test_worker_whose_database_is_away_leaves_the_run_to_its_horse(any_env: Env) -> None:
    run = any_env.fire_next(any_env.create())
    away = Database("postgresql+psycopg://nobody@127.0.0.1:9/none")
    side = WorkerSide(make_runtime(any_env.runtime.settings, database=away, clock=any_env.clock), job_id(run.state))

    assert side._perform({"token": "token", "worker": "here:1"}) == b""
    assert side._perform({"result": None, "at": any_env.runtime.now().isoformat()}) == b""
    side.close()
