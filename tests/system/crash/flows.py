"""The flows that are crashed: the preparation of the env, and the actions of the process.

A flow's steps are counted by running it, so a new statement in the code is crashed by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from rqsched import After, Cron, Every, Once, RetryPolicy
from rqsched.api.schedule_handle import RunHandle, ScheduleHandle
from rqsched.features.after import chain as following
from rqsched.features.calendars import store as calendars
from rqsched.features.calendars.chain import apply_changed_calendars
from rqsched.features.declarations.declarations import Declaration
from rqsched.features.retry_on_request import chain as retrying_on_request
from rqsched.kernel.chain import create, execution, settle
from rqsched.kernel.chain import fire as firing
from rqsched.kernel.chain.create import Named, ScheduleRequest
from rqsched.kernel.chain.reconcile import lost_attempts, schedules
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.ids import new_uid, parse_run_job_id
from rqsched.kernel.decide.model import TASK, fence_of
from rqsched.kernel.decide.policy import FailurePolicy, OverlapPolicy
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult
from rqsched.kernel.store import metadata
from rqsched.kernel.store.tables import runs as run_rows
from rqsched.kernel.store.tables import schedules as schedule_rows
from rqsched.kernel.transport.transport import link_of
from rqsched.run.horse_sql import WorkerSide
from rqsched.run.work_horse import wait_for_end
from rqsched.workflows import Registry, Workflow, WorkflowNotFoundError
from tests.support.narrow import present
from tests.system.crash.env import CrashEnv
from tests.system.crash.workflows import NOTIFY, NOTIFY_IN_VAIN, WORK, AttemptFailedError

START = datetime(2026, 1, 15, 12, 1, 0, 123456, tzinfo=UTC)
FIRST = datetime(2026, 1, 15, 12, 5, tzinfo=UTC)
SECOND = datetime(2026, 1, 15, 12, 10, tzinfo=UTC)
HALF_A_SECOND = timedelta(milliseconds=500)
MOVED: dict[str, Any] = {"spec": Cron("5 12 * * *"), "exclude": "2026-01-16", "on_excluded": "previous"}
"""The options of a schedule whose first run also stands for the occurrence of the next day."""
RETRIES = RetryPolicy(max_retries=2, base=timedelta(seconds=5), then=FailurePolicy.DEAD)
ONCE = RetryPolicy(max_retries=0, then=FailurePolicy.DEAD)


@dataclass(frozen=True)
class Flow:
    """One thing a process does to one env."""

    name: str
    prepare: Callable[[CrashEnv], None]
    act: Callable[[CrashEnv], object]
    is_atomic: bool = True
    """One transaction writes it all: a process that died in it has done everything or nothing."""
    is_whole: bool = True
    """No process died before it, and Redis is as it should be."""
    is_long: bool = False
    """The flow takes minutes. Its Redis steps and repeated deliveries are tried on SQLite only."""


def make(env: CrashEnv, schedule_id: str = "report", *, fails: int = 0, **options: Any) -> ScheduleHandle:
    """Create a schedule of every five minutes, whose runs fail `fails` times."""
    given = {"spec": Cron("*/5 * * * *"), "retry": RETRIES, **options}
    spec = given.pop("spec")
    return env.scheduler.create(
        schedule_id, WORK, spec, kwargs={"log": str(env.log), "fails": fails}, note=None, **given
    )


def made(**options: Any) -> Callable[[CrashEnv], None]:
    """A schedule, and nothing else."""

    def prepare(env: CrashEnv) -> None:
        make(env, **options)

    return prepare


def report(env: CrashEnv) -> ScheduleHandle:
    return env.scheduler.get("report")


def fire(env: CrashEnv, occurrence: datetime) -> None:
    env.clock.set(occurrence + HALF_A_SECOND)
    env.dispatch_all()


def waiting(at: datetime | None = None, **options: Any) -> Callable[[CrashEnv], None]:
    """The first run is pending, its job on its queue."""

    def prepare(env: CrashEnv) -> None:
        make(env, **options)
        fire(env, FIRST)
        env.clock.set(at or env.clock.now())

    return prepare


def popped(at: datetime | None = None, **options: Any) -> Callable[[CrashEnv], None]:
    """The first run is pending, and a worker has taken its job."""

    def prepare(env: CrashEnv) -> None:
        waiting(at, **options)(env)
        env.job = env.next_job()

    return prepare


def running(at: datetime | None = None, **options: Any) -> Callable[[CrashEnv], None]:
    """The first run has begun in a process that is heard of no more."""

    def prepare(env: CrashEnv) -> None:
        popped(at, **options)(env)
        claim(env)

    return prepare


def claim(env: CrashEnv) -> None:
    job = present(parse_run_job_id(env.job or ""))
    assert execution.claim_run(env.runtime, job) is not None


def execute(env: CrashEnv) -> None:
    """Execute the job a worker has taken."""
    job = present(parse_run_job_id(env.job or ""))
    try:
        execution.execute(env.runtime, job)
    except AttemptFailedError:
        return


def write_for_horse(env: CrashEnv) -> None:
    """Be the worker of a horse that executes the job, and write for it; the horse outlives it."""
    job = present(parse_run_job_id(env.job or ""))
    worker = WorkerSide(env.runtime, job)
    horse = os.fork()
    if horse == 0:
        env.survive()
        worker.after_fork_in_horse()
        execution.execute(env.runtime, job)
        os._exit(0)
    worker.after_fork_in_worker()
    wait_for_end(horse, lambda: {} if worker.descriptor is None else {worker.descriptor: worker.answer}, lambda: None)
    os.waitpid(horse, 0)
    worker.close()


def blocked(first: Callable[..., Callable[[CrashEnv], None]], **options: Any) -> Callable[[CrashEnv], None]:
    """The second run waits for the first one."""

    def prepare(env: CrashEnv) -> None:
        first(**{"overlap": "buffer_one", **options})(env)
        fire(env, SECOND)

    return prepare


def retrying(env: CrashEnv) -> None:
    """The first attempt of the first run has failed."""
    popped(fails=1, overlap="buffer_all")(env)
    execute(env)


def retry_due(env: CrashEnv) -> None:
    """The time of its second attempt has come."""
    retrying(env)
    env.clock.advance(timedelta(seconds=6))


def late(at: datetime = SECOND + HALF_A_SECOND, **options: Any) -> Callable[[CrashEnv], None]:
    """Occurrences have passed and nothing fired them."""

    def prepare(env: CrashEnv) -> None:
        make(env, **options)
        env.clock.set(at)

    return prepare


def late_over_skips(env: CrashEnv) -> None:
    """Two occurrences are skipped and have passed, and the one after them is due."""
    make(env)
    report(env).skip_next(2, reason="the bank is closed")
    env.clock.set(SECOND + timedelta(minutes=5) + HALF_A_SECOND)


def naming(env: CrashEnv) -> None:
    """Two schedules and a paused one name a calendar that excludes nothing yet."""
    env.scheduler.calendars.set("breaks", [])
    for name in ("report", "other", "third"):
        make(env, name, exclude=["breaks"])
    env.scheduler.get("third").pause()


def change_calendar(env: CrashEnv) -> None:
    env.scheduler.calendars.set("breaks", ["12:04-12:08"])


def changed_in_vain(env: CrashEnv) -> None:
    """A process that changed their calendar died before it planned anything again, and the excluded fire is due."""
    naming(env)
    before = env.scheduler.calendars.get("breaks")
    now = env.clock.now()
    new = replace(before, exclude=("12:04-12:08",), revision=2, edit=new_uid(now), since=now, changed_at=now)
    change = calendars.change_of(new, before, None)
    env.runtime.database.transact(lambda connection: calendars.write(connection, new, before, change))
    env.clock.set(FIRST + HALF_A_SECOND)


def plan_again(env: CrashEnv) -> None:
    for _ in apply_changed_calendars(env.runtime):
        pass


def expired(env: CrashEnv) -> None:
    """The first run was not started in time, its job is on its queue, and the second run waits for it."""
    blocked(waiting, start_within="7m")(env)
    env.clock.set(FIRST + timedelta(minutes=7, seconds=1))


def taken_late(env: CrashEnv) -> None:
    """The first run was not started in time, and a worker has taken its job now; another run waits for it."""
    blocked(popped, start_within="7m")(env)
    env.clock.set(FIRST + timedelta(minutes=7, seconds=1))


def expire(env: CrashEnv) -> None:
    for _ in lost_attempts.expire(env.runtime):
        continue


def crowded(env: CrashEnv) -> None:
    """One run retries, one waits, and an occurrence is due."""
    retrying(env)
    fire(env, SECOND)
    env.clock.set(SECOND + timedelta(minutes=5, seconds=1))


def paused(env: CrashEnv) -> None:
    """Paused with a run waiting, and two occurrences passed since."""
    blocked(waiting)(env)
    report(env).pause()
    env.clock.advance(timedelta(minutes=11))


def pause_over(env: CrashEnv) -> None:
    """Paused with a run waiting until before now, and two occurrences passed during the pause and one since."""
    blocked(waiting)(env)
    now = env.clock.now()
    report(env).pause(until=now + timedelta(minutes=11), on_resume="once")
    env.clock.advance(timedelta(minutes=16))


def end_pauses(env: CrashEnv) -> None:
    for _ in schedules.end_pauses(env.runtime):
        continue


def ended(**options: Any) -> Callable[[CrashEnv], None]:
    """The schedule is done or dead."""

    def prepare(env: CrashEnv) -> None:
        popped(**options)(env)
        execute(env)

    return prepare


def flushed(env: CrashEnv) -> None:
    """Everything there is to repair: Redis is empty, time has passed, and a worker died."""
    for schedule_id in ("pending", "running", "silent", "retrying", "waiting"):
        make(env, schedule_id, overlap="buffer_all", fails=int(schedule_id == "retrying"))
    fire(env, FIRST)
    jobs = {run.uid: str(env.next_job()) for story in env.stories() for run in story.runs}
    by_name = {story.schedule.schedule_id: story for story in env.stories()}
    for schedule_id in ("running", "silent", "retrying"):
        env.job = next(job for uid, job in jobs.items() if job.split("-")[1] == by_name[schedule_id].runs[0].uid)
        execute(env) if schedule_id == "retrying" else claim(env)
    fire(env, SECOND)
    _spoil(env)
    env.redis.flushdb()
    env.clock.advance(timedelta(minutes=2))
    make(env, "late", spec=Every("90s"))
    env.redis.flushdb()
    env.clock.advance(timedelta(minutes=2))


def _spoil(env: CrashEnv) -> None:
    """Make rows as a crash of an older version, a dead worker and new timezone rules would leave them."""
    silent = env.scheduler.get("silent").runs().items[-1].uid
    ahead = env.scheduler.get("waiting").runs().items[-1].uid

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.update(run_rows).where(run_rows.c.uid == silent).values(sightings=3, seen_beat=0))
        gone = {"status": "cancelled", "ended_at": env.clock.now()}
        connection.execute(sa.update(run_rows).where(run_rows.c.uid == ahead).values(gone))
        no_time = {"next_run_at": None, "due_at": None}
        connection.execute(sa.update(schedule_rows).where(schedule_rows.c.schedule_id == "pending").values(no_time))
        metadata.set_value(connection, "tzdata", "older")

    env.scheduler.recover()
    env.runtime.database.transact(write)


def dispatch(env: CrashEnv) -> None:
    """Fire the due links, and later those that a lost answer left leased."""
    env.dispatch_all()
    env.clock.advance(env.runtime.settings.link_lease + HALF_A_SECOND)
    env.dispatch_all()


def fire_plainly(env: CrashEnv) -> None:
    """Fire the link as a plain `rq worker` does; RQ has taken it out of Redis."""
    firing.fire(env.runtime, [env.job or ""])


def taken_by_rq(env: CrashEnv) -> None:
    make(env)
    env.clock.set(FIRST + HALF_A_SECOND)
    env.job = str(link_of(report(env).state)[0].id)
    env.redis.zrem(env.runtime.transport.scheduled_key, env.job)


def of_report(act: Callable[[ScheduleHandle], Any]) -> Callable[[CrashEnv], None]:
    def perform(env: CrashEnv) -> None:
        act(report(env))

    return perform


def first_run(env: CrashEnv) -> RunHandle:
    return report(env).run("1")


def backfill(overlap: str) -> Callable[[CrashEnv], None]:
    start, end = START - timedelta(minutes=31), START - timedelta(minutes=15)
    return of_report(lambda handle: handle.backfill(start, end, overlap=overlap))


def come_after(env: CrashEnv, on: str = "success") -> None:
    """Create a schedule that comes after the report."""
    make(env, "later", spec=After("report", on=on))


def followed(first: Callable[[CrashEnv], None], on: str = "success") -> Callable[[CrashEnv], None]:
    """Another schedule comes after it."""

    def prepare(env: CrashEnv) -> None:
        first(env)
        come_after(env, on)

    return prepare


def owed(env: CrashEnv) -> None:
    """The process that ended the first run died before it started the downstream run."""
    followed(popped())(env)
    claim = present(execution.claim_run(env.runtime, present(parse_run_job_id(env.job or ""))))
    ended = AttemptResult(AttemptOutcome.SUCCEEDED)
    assert settle.write_end(env.runtime, claim, ended, patience=env.runtime.end_patience)[1]
    env.log.open("a").write(f"{claim.run.uid} {claim.run.attempt} {fence_of(present(claim.run.started_at))}\n")
    env.clock.advance(HALF_A_SECOND)


def start_owed(env: CrashEnv) -> None:
    for _ in following.start_owed(env.runtime):
        continue


def make_two(env: CrashEnv) -> None:
    make(env)
    make(env, "other")


def gone(env: CrashEnv) -> None:
    """The upstream of a schedule was deleted."""
    make(env)
    come_after(env)
    report(env).delete()


def sync_backwards(env: CrashEnv) -> None:
    options: Any = {"kwargs": {"log": str(env.log), "fails": 0}}
    two = [Declaration("later", WORK, After("first"), options), Declaration("first", WORK, Every("60s"), options)]
    env.scheduler.sync(two)


def missed_while_paused(env: CrashEnv) -> None:
    """The schedule that comes after is paused, and a run ended meanwhile."""
    followed(popped())(env)
    env.scheduler.get("later").pause()
    execute(env)


def sync(env: CrashEnv) -> None:
    env.scheduler.sync([Declaration("one", WORK, Every("60s"), {"kwargs": {"log": str(env.log)}})], delete_removed=True)


def declared(env: CrashEnv) -> None:
    declarations = [Declaration(name, WORK, Every("90s"), {"kwargs": {"log": str(env.log)}}) for name in ("one", "two")]
    env.scheduler.sync(declarations)


def old_history(env: CrashEnv) -> None:
    """Three runs and a backfilled one ended days ago, and one is to be kept."""
    make(env, retention="1")
    for at in (FIRST, SECOND, SECOND + timedelta(minutes=5)):
        fire(env, at)
        env.job = env.next_job()
        execute(env)
    report(env).backfill(START - timedelta(minutes=31), START - timedelta(minutes=25))
    env.job = env.next_job()
    execute(env)
    report(env).pause()
    env.clock.advance(timedelta(days=3))


def prune(env: CrashEnv) -> None:
    """Prune, and fire the pruned occurrences again: none runs a second time."""
    env.scheduler.prune()
    rows = report(env).backfill(START - timedelta(minutes=31), FIRST + timedelta(minutes=12)).rows
    assert {row.outcome for row in rows} <= {"already_run"}


def upsert(env: CrashEnv) -> None:
    env.scheduler.upsert("report", WORK, Cron("*/7 * * * *"), kwargs={"log": str(env.log)}, paused=False)


def lose(env: CrashEnv) -> None:
    """The worker saw its own horse die."""
    job = present(parse_run_job_id(env.job or ""))
    settle.lose_run(env.runtime, job, "killed")


def enqueue(env: CrashEnv) -> None:
    """Create a schedule with its one run, as a task of Django is."""
    now = env.runtime.now()
    options = {"managed_by": TASK, "retry": RETRIES, "kwargs": {"log": str(env.log), "fails": 0}}
    definition = define(None, options, workflow=WORK, spec=Once(now))
    request = ScheduleRequest(Named("default", "report"), definition, must_have_future=False, starts_past=True)
    create.create(env.runtime, request)


def nothing(env: CrashEnv) -> None:
    del env


OVERLAPS = [
    Flow(
        f"fire under {policy.value}, a run {state}",
        prepare(SECOND + HALF_A_SECOND, overlap=policy.value),
        dispatch,
        is_whole=is_whole,
    )
    for policy in OverlapPolicy
    for state, prepare, is_whole in (("pending", waiting, True), ("running", running, False))
]
OWNER = [
    Flow("create", nothing, made()),
    Flow("enqueue a task", nothing, enqueue),
    Flow("upsert creates", nothing, upsert),
    Flow("upsert updates what is late", late(), upsert),
    Flow("upsert resumes", paused, upsert),
    Flow("update the timing of what is late", late(), of_report(lambda h: h.update(spec=Cron("*/7 * * * *")))),
    Flow("free the day of what was moved and has run", waiting(**MOVED), of_report(lambda h: h.update(exclude=[]))),
    Flow(
        "move what is ahead to a time that has passed",
        waiting(**MOVED | {"exclude": ()}),
        of_report(lambda h: h.update(exclude="2026-01-16")),
    ),
    Flow("update the overlap policy", waiting(), of_report(lambda h: h.update(overlap="allow_all"))),
    Flow("pause", crowded, of_report(lambda h: h.pause("away"))),
    Flow("pause until", crowded, of_report(lambda h: h.pause("away", until=h.runtime.now() + timedelta(hours=1)))),
    Flow("skip next", crowded, of_report(lambda h: h.skip_next(2, reason="the bank is closed"))),
    Flow("resume", paused, of_report(lambda h: h.resume())),
    Flow("resume and fire what was missed", paused, of_report(lambda h: h.resume(on_resume="once"))),
    Flow("delete", crowded, of_report(lambda h: h.delete())),
    Flow("delete and purge", crowded, of_report(lambda h: h.delete(purge=True)), is_atomic=False),
    Flow("restart a done one", ended(max_runs=1), of_report(lambda h: h.restart())),
    Flow("restart a dead one", ended(fails=9, retry=ONCE), of_report(lambda h: h.restart())),
    Flow("trigger", made(), of_report(lambda h: h.trigger())),
    Flow("trigger with a key", made(), of_report(lambda h: h.trigger(idempotency_key="7"))),
    Flow("trigger that waits", blocked(waiting, overlap="buffer_all"), of_report(lambda h: h.trigger())),
    Flow("trigger that replaces", waiting(), of_report(lambda h: h.trigger(overlap="cancel_other"))),
    Flow("backfill one after another", made(), backfill("skip"), is_atomic=False),
    Flow("backfill at once", made(), backfill("allow_all"), is_atomic=False),
    Flow("cancel a pending run", waiting(), lambda env: first_run(env).cancel()),
    Flow("terminate a running run", running(), lambda env: first_run(env).terminate(), is_whole=False),
    Flow("sync and prune", declared, sync, is_atomic=False),
]
CHAIN = [
    Flow("fire under a plain rq worker", taken_by_rq, fire_plainly),
    Flow("fire after three days", late(START + timedelta(days=3)), dispatch),
    Flow("fire all of three", late(START + timedelta(minutes=15), missed="all", overlap="buffer_all"), dispatch),
    Flow(
        "fire all of three, of which max_runs allows two",
        late(START + timedelta(minutes=15), missed="all", overlap="allow_all", max_runs=2),
        dispatch,
    ),
    Flow("fire what was moved", late(FIRST + HALF_A_SECOND, **MOVED), dispatch),
    Flow("fire over what is skipped", late_over_skips, dispatch),
    Flow("create and name a calendar", naming, lambda env: make(env, "new", exclude=["breaks"])),
    Flow("change a calendar", naming, change_calendar, is_atomic=False),
    Flow("fire after a calendar was changed in vain", changed_in_vain, dispatch, is_whole=False),
    Flow("plan what a changed calendar left", changed_in_vain, plan_again, is_atomic=False, is_whole=False),
    Flow("fire the last of max_runs", late(FIRST + HALF_A_SECOND, max_runs=1), dispatch),
    Flow("tick", late(), lambda env: env.scheduler.tick()),
    Flow("retry", retry_due, dispatch),
    Flow("a pause ends by itself", pause_over, end_pauses),
]


class _OldRelease(Registry):
    """The code of a worker that lacks the requested workflow."""

    def resolve(self, name: str) -> Workflow:
        raise WorkflowNotFoundError(name)


def execute_without_code(env: CrashEnv) -> None:
    """A worker of an older release executes the job it has taken."""
    runtime, known = env.runtime, env.runtime.workflows
    runtime.workflows = runtime.imports.workflows = _OldRelease()
    try:
        with suppress(WorkflowNotFoundError):  # raised when it has failed for good
            execute(env)
    finally:
        runtime.workflows = runtime.imports.workflows = known


def given_back(env: CrashEnv) -> None:
    """The first run was given back, and is due to be offered again."""
    popped(retry=ONCE)(env)
    execute_without_code(env)
    env.clock.advance(timedelta(seconds=6))


def offered_again(env: CrashEnv) -> None:
    """A worker has taken its next delivery."""
    given_back(env)
    env.dispatch_all()
    env.job = env.next_job()


def out_of_time(env: CrashEnv) -> None:
    """No worker could start it for an hour."""
    given_back(env)
    env.clock.advance(timedelta(hours=1))


def out_of_time_and_taken(env: CrashEnv) -> None:
    """It was given back once more before its time was up, and an old worker has taken it afterwards."""
    out_of_time(env)
    env.dispatch_all()
    env.job = env.next_job()


BLOCKED = [
    Flow("a run is given back", popped(retry=ONCE), execute_without_code, is_atomic=False),
    Flow("a run is given back again", offered_again, execute_without_code, is_atomic=False),
    Flow("a blocked run is offered again", given_back, dispatch),
    Flow("a blocked run starts and succeeds", offered_again, execute, is_atomic=False),
    Flow("a blocked run is cancelled", given_back, lambda env: first_run(env).cancel()),
    Flow("a blocked run is out of time for its worker", out_of_time_and_taken, execute_without_code, is_atomic=False),
    Flow("a blocked run is out of time for reconcile", out_of_time, lambda env: env.scheduler.recover(), False, False),
]
RUNS = [
    Flow("a run succeeds", popped(), execute, is_atomic=False),
    Flow("a run succeeds for whose horse its worker writes", popped(), write_for_horse, is_atomic=False),
    Flow("a run ends for whose horse its worker writes", blocked(popped), write_for_horse, is_atomic=False),
    Flow("a run that must not be repeated succeeds", popped(retry=ONCE), execute, is_atomic=False),
    Flow("a run fails and is retried", popped(fails=1), execute, is_atomic=False),
    Flow("a run exhausts its attempts and its schedule", popped(fails=9, retry=ONCE), execute, is_atomic=False),
    Flow(
        "a run exhausts its attempts, the schedule goes on",
        popped(fails=9, retry=RetryPolicy(max_retries=0, then=FailurePolicy.CONTINUE)),
        execute,
        is_atomic=False,
    ),
    Flow("a run ends and the next is drained", blocked(popped), execute, is_atomic=False),
    Flow(
        "a run ends and the next is counted from then", popped(spec=Every("4m", from_completion=True)), execute, False
    ),
    Flow("the last run of max_runs ends", popped(max_runs=1), execute, is_atomic=False),
    Flow("a horse dies under its worker", running(), lose, is_whole=False),
]


def fails_for_good(on_failure: str) -> dict[str, Any]:
    """Return the options of a schedule whose first run fails and notifies `on_failure`."""
    return {"fails": 9, "retry": RetryPolicy(max_retries=0), "on_failure": on_failure}


def owing(on_failure: str) -> Callable[[CrashEnv], None]:
    """The first run has failed, and a worker has taken the job of its notification."""

    def prepare(env: CrashEnv) -> None:
        popped(**fails_for_good(on_failure))(env)
        execute(env)
        env.job = env.next_job()
        assert (env.job or "").startswith("delivery-")

    return prepare


def notify(env: CrashEnv) -> None:
    """Execute the job of a notification."""
    with suppress(AttemptFailedError):
        env.execute(env.job or "")


def without_success(env: CrashEnv) -> None:
    """No run has succeeded for as long as the schedule allows."""
    make(env, **fails_for_good(NOTIFY), expect_success_within="2m")
    env.clock.advance(timedelta(minutes=3))


def takes_long(env: CrashEnv) -> None:
    """A run takes longer than its schedule expects."""
    running(on_failure=NOTIFY, expect_duration="1m")(env)
    env.clock.advance(timedelta(minutes=2))


FAILS_ONCE: dict[str, Any] = {"fails": 1, "retry": RetryPolicy(max_retries=0)}


def failed_behind(env: CrashEnv) -> None:
    """The first run has failed, and the second is pending."""
    ended(**FAILS_ONCE)(env)
    fire(env, SECOND)


def asked_behind(env: CrashEnv) -> None:
    """Somebody asked for the first run again, which waits for the second."""
    failed_behind(env)
    assert first_run(env).retry().status == "buffered"
    env.job = env.next_job()


def both_failed(env: CrashEnv) -> None:
    """The first two runs have failed."""
    failed_behind(env)
    env.job = env.next_job()
    execute(env)
    assert {run.status for run in report(env).runs().items} == {"failed"}


def requeue(env: CrashEnv) -> None:
    """A worker has taken the requeued job of the first run, which has failed."""
    job = present(parse_run_job_id(env.job or ""))
    retrying_on_request.retry_requeued(env.runtime, job)


RETRIES_ON_REQUEST = [
    Flow("retry on request", ended(**FAILS_ONCE), lambda env: first_run(env).retry("repaired")),
    Flow("retry on request, the schedule dead", ended(fails=1, retry=ONCE), lambda env: first_run(env).retry()),
    Flow("run again", ended(), lambda env: first_run(env).run_again()),
    Flow("run again behind another run", failed_behind, lambda env: first_run(env).run_again()),
    Flow("retry on request that waits", failed_behind, lambda env: first_run(env).retry()),
    Flow("retry on request that waited is drained", asked_behind, execute, is_atomic=False),
    Flow("retry on request of a requeued job", ended(**FAILS_ONCE), requeue),
    Flow(
        "retry on request of all that failed",
        both_failed,
        lambda env: env.scheduler.runs.retry_failed(timedelta(hours=1)),
        is_atomic=False,
    ),
    Flow(
        "retry on request by a backfill",
        both_failed,
        of_report(lambda h: h.backfill(FIRST, SECOND + timedelta(seconds=1), rerun="failed")),
        is_atomic=False,
    ),
]
NOTIFICATIONS = [
    Flow("a run fails and somebody is told", popped(**fails_for_good(NOTIFY)), execute, is_atomic=False),
    Flow("a notification is delivered", owing(NOTIFY), notify, is_atomic=False),
    Flow("a notification fails and is repeated", owing(NOTIFY_IN_VAIN), notify, is_atomic=False, is_whole=False),
    Flow("a run that nobody started expires", expired, expire),
    Flow("a worker takes a run that has expired", taken_late, execute),
    Flow("an overdue schedule is found", without_success, lambda env: env.scheduler.recover(), is_atomic=False),
    Flow("a long run is found", takes_long, lambda env: env.scheduler.recover(), is_atomic=False, is_whole=False),
]
LIMIT: dict[str, Any] = {"limit": "shop", "retry": ONCE}


def limited(at: datetime = FIRST + HALF_A_SECOND) -> Callable[[CrashEnv], None]:
    """Two schedules of one group, of which one run may run at once, and the first occurrence of each is due."""

    def prepare(env: CrashEnv) -> None:
        make(env, limit_running=1, **LIMIT)
        make(env, "other", **LIMIT)
        env.clock.set(at)

    return prepare


def rated(env: CrashEnv) -> None:
    """Both schedules of a group of which one attempt may start in ten seconds are due."""
    make(env, limit_rate="1/10s", **LIMIT)
    make(env, "other", **LIMIT)
    env.clock.set(FIRST + HALF_A_SECOND)


def in_line_for_rate(env: CrashEnv) -> None:
    """A worker has taken the job of the one that has the place; the other is in line."""
    rated(env)
    env.dispatch_all()
    env.job = env.next_job()


def start_left(env: CrashEnv) -> None:
    """One has run; its start leaves the window now, for which the other waits in line."""
    in_line_for_rate(env)
    execute(env)
    env.clock.advance(timedelta(seconds=10))


def in_line(env: CrashEnv) -> None:
    """A worker has taken the job of the one that has the place; the other is in line."""
    limited()(env)
    env.dispatch_all()
    env.job = env.next_job()


def waiting_in_line(env: CrashEnv) -> None:
    """The job of the one that has the place is on its queue; the other is in line."""
    limited()(env)
    env.dispatch_all()


def one_runs(env: CrashEnv) -> None:
    """The one that has the place runs; the other is in line."""
    in_line(env)
    claim(env)


def unclaimed(env: CrashEnv) -> None:
    """The run with the place is unclaimed for half a minute; the other is in line."""
    limited()(env)
    env.dispatch_all()
    env.clock.advance(timedelta(seconds=31))


def passed_over(env: CrashEnv) -> None:
    """It was passed over, the other has the place, and a worker takes the first one's job now."""
    unclaimed(env)
    env.scheduler.recover()
    env.job = env.next_job()


def passed_over_while_other_runs(env: CrashEnv) -> None:
    """The other one runs by now."""
    passed_over(env)
    mine, env.job = env.job, env.next_job()
    claim(env)
    env.job = mine


LIMITS = [
    Flow("the first schedule of a group is created", nothing, made(limit_running=1, **LIMIT)),
    Flow("places of a group are given on a fire", limited(), dispatch),
    Flow("a run of a group ends and the next gets its place", in_line, execute, is_atomic=False),
    Flow("places of a group with a rate are given on a fire", rated, dispatch),
    Flow("a run whose start counts is claimed", in_line_for_rate, claim, is_whole=False),
    Flow("a run of a group with a rate ends", in_line_for_rate, execute, is_atomic=False, is_whole=False),
    Flow("a start leaves the window and the next gets its place", start_left, dispatch, is_whole=False),
    Flow("a run of a group is terminated", one_runs, lambda env: holder(env).terminate(), is_whole=False),
    Flow("a run in line is cancelled", waiting_in_line, lambda env: waiter(env).cancel()),
    Flow("a run of a group is lost", one_runs, lose, is_whole=False),
    Flow("a grant is passed on", unclaimed, lambda env: env.scheduler.recover(), is_atomic=False, is_whole=False),
    Flow("a run that was passed over gets a place", passed_over, execute, is_atomic=False, is_whole=False),
    Flow("a run that was passed over waits", passed_over_while_other_runs, execute, is_atomic=False, is_whole=False),
    Flow(
        "the number of a group is raised",
        waiting_in_line,
        lambda env: env.scheduler.limits.set("shop", 2),
        is_whole=False,
    ),
]


def holder(env: CrashEnv) -> RunHandle:
    """The run that has the place."""
    return next(run for run in of_both(env) if run.state.granted_at is not None)


def waiter(env: CrashEnv) -> RunHandle:
    return next(run for run in of_both(env) if run.state.is_in_line)


def of_both(env: CrashEnv) -> list[RunHandle]:
    return [run for name in ("report", "other") for run in env.scheduler.get(name).runs().items]


RECOVER = [
    Flow("prune", old_history, prune, is_atomic=False),
    Flow("recover after a flush", flushed, lambda env: env.scheduler.recover(), False, False, True),
]
AFTER = [
    Flow("create one that comes after it", made(), come_after),
    Flow("update to come after another", make_two, lambda env: env.scheduler.get("other").update(spec=After("report"))),
    Flow("sync two in the wrong order", nothing, sync_backwards),
    Flow("create again what another comes after", gone, made()),
    Flow("a run succeeds and one comes after it", followed(popped()), execute, is_atomic=False),
    Flow(
        "a run fails for good and one comes after it",
        followed(popped(fails=9, retry=ONCE), "failure"),
        execute,
        is_atomic=False,
    ),
    Flow(
        "a run succeeds for whose horse its worker writes and one comes after it",
        followed(popped()),
        write_for_horse,
        is_atomic=False,
    ),
    Flow("a pass starts what is owed", owed, start_owed),
    Flow(
        "fire under cancel_other ends what one comes after",
        followed(running(SECOND + HALF_A_SECOND, overlap="cancel_other"), "end"),
        dispatch,
        is_atomic=False,
        is_whole=False,
    ),
    Flow(
        "delete with retries that one comes after",
        followed(retrying, "failure"),
        of_report(lambda h: h.delete()),
        is_atomic=False,
    ),
    Flow(
        "resume after an end",
        missed_while_paused,
        lambda env: env.scheduler.get("later").resume("once"),
        is_atomic=False,
    ),
]  # fmt: skip
FLOWS = [*OWNER, *OVERLAPS, *CHAIN, *RUNS, *AFTER, *RETRIES_ON_REQUEST, *BLOCKED, *NOTIFICATIONS, *LIMITS, *RECOVER]
