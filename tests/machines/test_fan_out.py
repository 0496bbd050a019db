"""A machine's run: the instances it finds, a job for each, and the outcome of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rq.job import Job
from statemachine import State, StateChart, StateMachine

from rqsched import Once, RetryPolicy
from rqsched.errors import InvalidInputError, WrongDatabaseError
from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.store import Batch
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId, new_uid, parse_target_job_id
from rqsched.kernel.decide.policy import FailurePolicy
from rqsched.kernel.store.tables import targets as rows
from rqsched.machines import MachineScheduler, MachineStates, machine
from rqsched.run.work_horse import horse_died
from rqsched.testing import assert_has_schedule, assert_state, execute_pending, run_due, run_schedule
from tests.support.env import MINUTE, Env, MakeEnv, module_level, newest, types
from tests.support.machine_case import EXPIRY, Application, open_case
from tests.support.narrow import present
from tests.support.servers import free_port


def targets_of(env: Env, run: Any, status: str | None = None) -> list[str]:
    return [row["target_id"] for row in MachineScheduler.targets(env.scheduler, run.uid, status=status)]


@dataclass
class ExpiredApplications:
    """A resolver with a dependency."""

    found: list[Any]

    def __call__(self) -> list[Any]:
        return self.found


RESOLVERS: dict[str, Any] = {
    "a function": lambda: ["a-1", "a-2"],
    "a generator": lambda: (name for name in ("a-1", "a-2")),
    "an object": ExpiredApplications(["a-1", "a-2"]),
    "a class with what it depends on": ExpiredApplications,
}


@pytest.mark.parametrize("resolver", RESOLVERS.values(), ids=RESOLVERS.keys())
def test_a_resolver_decides_which_instances_get_the_event(any_env: Env, resolver: Any) -> None:
    case = open_case(any_env, {"CHECK_EXPIRY": resolver}, make_resolver=lambda cls: cls(["a-1", "a-2"]))
    case.states.put_all(dict.fromkeys(["a-1", "a-2", "a-3"]))

    run = case.run()

    assert (run.status, run.result) == ("succeeded", {"targets": 2, "filtered": 0})
    assert case.log == ["a-1", "a-2"]
    assert case.count(run) == {"succeeded": 2}
    assert [case.states.get(name) for name in ("a-1", "a-3")] == ["expired", "waiting"]


def test_a_resolver_class_is_created_without_arguments_or_by_make_resolver(env: Env) -> None:
    class Everybody:
        def __call__(self) -> list[str]:
            return ["a-1"]

    case = open_case(env, {"CHECK_EXPIRY": Everybody})
    case.states.put("a-1")
    assert case.run().result == {"targets": 1, "filtered": 0}


def test_ids_of_other_machines_are_filtered_and_counted_and_each_instance_gets_the_event_once(
    make_env: MakeEnv, database_url: str
) -> None:
    env = make_env(database_url=database_url, target_chunk=2)
    ids = ["a-1", "order-1", "a-2", "a-1", 7, "nobody", "a-2", "order-1"]
    case = open_case(env, {"CHECK_EXPIRY": lambda: ids})
    case.states.put_all(dict.fromkeys(["a-1", "a-2", "7"]))
    order = machine(name="Order", workflows=env.runtime.workflows)(type(case.machine)("Order", (case.machine,), {}))
    MachineStates(env.scheduler, order).put("order-1", "waiting")

    run = case.run()

    assert run.result == {"targets": 3, "filtered": 2}
    assert case.log == ["a-1", "a-2", "7"]
    assert MachineStates(env.scheduler, order).get("order-1") == "waiting"


def test_a_resolver_that_raises_fails_the_attempt_which_is_retried(any_env: Env) -> None:
    def resolve() -> Iterator[str]:
        yield "a-1"
        raise ConnectionError("the model's database is away")

    case = open_case(any_env, {"CHECK_EXPIRY": resolve})
    case.states.put("a-1")

    run = case.run()

    assert run.status == "retrying"
    assert run.error is not None
    assert run.error.startswith("ConnectionError: the model's database is away")
    assert (case.log, case.count(run)) == ([], {}), "nothing was dispatched"
    assert run.retry_at is not None
    assert run.retry_at - any_env.clock.now() == MINUTE
    schedule = any_env.scheduler.get(EXPIRY).update(retry=RetryPolicy(then=FailurePolicy.DEAD))
    for _ in range(3):
        any_env.run_due(timedelta(hours=1))
    assert newest(schedule).status == "failed"
    assert schedule.refresh().status == "dead"
    assert types(schedule)[-1] == "Died", "audited, and never green"


@pytest.mark.parametrize("found", [None, "a-1", 5], ids=["nothing at all", "a text", "a number"])
def test_a_resolver_that_does_not_return_ids_fails_the_run(env: Env, found: Any) -> None:
    case = open_case(env, {"CHECK_EXPIRY": lambda: found})
    run = case.run()
    assert run.status == "retrying"
    assert run.error is not None
    assert "must return ids" in run.error


@pytest.mark.parametrize(
    "resolver", [None, ExpiredApplications([])], ids=["found by their state", "named by a resolver"]
)
def test_no_instances_are_a_success_with_zero(any_env: Env, resolver: Any) -> None:
    run = open_case(any_env, {"CHECK_EXPIRY": resolver}).run()
    assert (run.status, run.result) == ("succeeded", {"targets": 0, "filtered": 0})
    assert execute_pending(any_env.scheduler) == 0


def test_without_a_resolver_every_instance_whose_state_takes_the_event_gets_it(
    make_env: MakeEnv, database_url: str
) -> None:
    env = make_env(database_url=database_url, target_chunk=2)
    case = open_case(env)
    states = {"a-1": "waiting", "a-2": "approved", "a-3": "expired", "a-4": "approved", "a-5": "approved"}
    case.states.put_all(states)

    reminded, expired = case.run("SEND_REMINDER"), case.run("CHECK_EXPIRY")

    assert targets_of(env, reminded) == ["a-2", "a-4", "a-5"]
    assert targets_of(env, expired) == ["a-1", "a-2", "a-4", "a-5"]


def make_order(env: Env) -> Any:
    class Order(StateMachine):
        class shopping(State.Compound):  # noqa: N801 - a state
            cart = State(initial=True)
            payment = State()
            pay = cart.to(payment)

        class shipping(State.Parallel):  # noqa: N801 - a state
            class parcel(State.Compound):  # noqa: N801 - a state
                packed = State(initial=True)
                sent = State(final=True)
                SEND = packed.to(sent)

            class bill(State.Compound):  # noqa: N801 - a state
                open_ = State(initial=True)
                paid = State(final=True)
                settle = open_.to(paid)

        abandoned = State(final=True)
        ABANDON = shopping.to(abandoned)
        ship = shopping.to(shipping)
        done_state_shipping = shipping.to(abandoned)

        schedules = {"ABANDON": None, "SEND": None}  # noqa: RUF012 - as users write it

    return machine(workflows=env.runtime.workflows)(Order)


def test_a_state_takes_the_events_of_its_parent_state(any_env: Env) -> None:
    order = make_order(any_env)
    states = MachineStates(any_env.scheduler, order)
    states.put_all({"o-1": "shopping cart", "o-2": "payment", "o-3": "abandoned"})

    MachineScheduler.register(order, "ABANDON", workflows=any_env.runtime.workflows).daily_at("1:00")
    any_env.scheduler.sync()
    run = run_schedule(any_env.scheduler, "machine:Order:ABANDON")

    assert targets_of(any_env, run, "succeeded") == ["o-1", "o-2"]
    assert [states.get(name) for name in ("o-1", "o-2")] == ["abandoned"] * 2


def test_a_machine_in_parallel_states_gets_the_event_in_all_of_them(any_env: Env) -> None:
    order = make_order(any_env)
    live = order()
    live.ship()
    states = MachineStates(any_env.scheduler, order)
    states.put("o-1", live)

    done = MachineScheduler.run(any_env.scheduler, order, "SEND")
    execute_pending(any_env.scheduler)

    assert done.targets == 1
    assert set((states.get("o-1") or "").split()) == {"shipping", "parcel", "sent", "bill", "open_"}


def test_each_instance_has_a_job_whose_id_is_computed_from_schedule_occurrence_and_target(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))

    first, ids = case.start(), any_env.queued()
    assert len(set(ids)) == 2
    assert all(name.startswith("target-") for name in ids)
    any_env.execute_pending()
    case.states.put_all({"a-1": "waiting", "a-2": "waiting"})
    any_env.advance()
    second, others = case.start(), any_env.queued()

    assert not set(ids) & set(others), "another run has other jobs"
    assert [case.count(run) for run in (first, second)] == [{"succeeded": 2}, {"pending": 2}]


def test_the_next_chunk_is_enqueued_after_the_one_before_was_taken(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, target_chunk=3)
    case = open_case(env)
    names = [f"a-{number}" for number in range(8)]
    case.states.put_all(dict.fromkeys(names))

    run = case.start()

    assert case.count(run) == {"pending": 3, "waiting": 5}
    assert [name.split("-")[0] for name in env.queued()] == ["target"] * 3 + ["batch"]
    for _ in range(4):
        case.work_one()
    assert [name.split("-")[0] for name in env.queued()] == ["target"] * 3 + ["batch"]
    env.execute_pending()
    assert case.log == names
    assert case.count(run) == {"succeeded": 8}


def test_targets_that_redis_lost_are_enqueued_again(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, target_chunk=2)
    case = open_case(env)
    names = ["a-1", "a-2", "a-3"]
    case.states.put_all(dict.fromkeys(names))
    run = case.start()
    env.redis.flushdb()

    assert env.scheduler.recover().targets == 3, "two targets, and what goes on with the third"
    assert env.scheduler.recover().targets == 0
    env.execute_pending()

    assert sorted(case.log) == names
    assert case.count(run) == {"succeeded": 3}


def test_a_connection_that_is_down_does_not_delay_targets_of_another(make_env: MakeEnv, sqlite_url: str) -> None:
    env = make_env(database_url=sqlite_url, connections={"eu": f"redis://127.0.0.1:{free_port()}/0"})
    case = open_case(env)
    case.states.put("a-1")
    for id_, connection in (("far", "eu"), ("near", None)):
        case.register(schedule_id=id_).daily_at("00:10").option(connection=connection)
    env.scheduler.sync()
    for id_ in ("far", "near"):
        run = present(env.scheduler.get(id_).trigger().run)
        batch = Batch(run.uid, f"machine:{case.machine.__name__}:CHECK_EXPIRY", env.clock.now(), timeout=5)
        far = batch._replace(connection="eu" if id_ == "far" else None)
        env.runtime.database.transact(
            partial(fan_out_targets.record, batch=far, named=["a-1"], first=1, now=env.clock.now())
        )
        job = BatchJobId(run.uid, 1)
        env.runtime.database.transact(partial(fan_out_targets.take_chunk, job=job, limit=1, now=env.clock.now()))
    env.advance(MINUTE)

    env.scheduler.recover()

    assert len(env.redis.keys("rq:job:target-*")) == 1


def test_a_run_cancelled_while_it_resolves_dispatches_no_target(make_env: MakeEnv, database_url: str) -> None:
    env = make_env(database_url=database_url, target_chunk=1)

    def resolve() -> list[str]:
        newest(env.scheduler.get(EXPIRY)).cancel()
        return ["a-1", "a-2"]

    case = open_case(env, {"CHECK_EXPIRY": resolve})
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))

    run = case.run()
    env.advance()
    env.scheduler.recover()

    assert (run.status, env.execute_pending(), case.log) == ("cancelled", 0, [])
    assert case.count(run) == {"cancelled": 1}, "what waited for it is given up"


def test_targets_go_to_the_queue_and_connection_of_their_run(
    make_env: MakeEnv, sqlite_url: str, redis_url: str
) -> None:
    env = make_env(database_url=sqlite_url, connections={"eu": redis_url.replace("/0", "/1")}, target_chunk=1)
    case = open_case(env)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))
    case.register().daily_at("00:10").option(queue="low", connection="eu")
    env.scheduler.sync()

    env.scheduler.get(EXPIRY).trigger()

    assert execute_pending(env.scheduler, "low") == 4, "the run, two targets and what follows the first"
    assert case.log == ["a-1", "a-2"]
    assert env.redis.keys("rq:job:target-*") == []


@pytest.mark.timeout(60)
def test_a_target_that_fails_or_hangs_does_not_affect_the_others(any_env: Env) -> None:
    def act(instance_id: str) -> None:
        if instance_id == "a-2":
            raise RuntimeError("as the test wants it")
        while instance_id == "a-3":
            pass

    case = open_case(any_env, acts=act, timeout=1)
    case.states.put_all(dict.fromkeys(["a-1", "a-2", "a-3", "a-4"]))

    run = case.run()

    assert (run.status, case.count(run)) == ("failed", {"succeeded": 2, "failed": 2})
    states = [case.states.get(f"a-{number}") for number in (1, 2, 3, 4)]
    assert states == ["expired", "waiting", "waiting", "expired"]
    rows = MachineScheduler.targets(any_env.scheduler, run.uid, status="failed")
    assert [row["error"].splitlines()[0] for row in rows] == [
        "RuntimeError: as the test wants it",
        "timeout: Task exceeded maximum timeout value (1 seconds)",
    ]


def test_an_instance_that_does_not_take_the_event_is_ignored(any_env: Env) -> None:
    case = open_case(any_env, {"CHECK_EXPIRY": lambda: ["a-1", "a-2", "a-3"]}, is_old=lambda name: name != "a-1")
    case.states.put_all({"a-1": "waiting", "a-2": "expired", "a-3": "approved"})

    run = case.run()

    assert targets_of(any_env, run, "ignored") == ["a-1", "a-2"], "a guard refuses, a state has no such transition"
    assert targets_of(any_env, run, "succeeded") == ["a-3"]


def test_a_statechart_that_silently_ignores_an_event_is_counted_as_ignored(env: Env) -> None:
    class Chart(StateChart[Any]):
        waiting = State(initial=True)
        done = State(final=True)
        finish = waiting.to(done)
        schedules = {"finish": lambda: ["c-1", "c-2"]}  # noqa: RUF012 - as owners write it

    machine(workflows=env.runtime.workflows)(Chart)
    MachineStates(env.scheduler, Chart).put_all({"c-1": "done", "c-2": "waiting"})

    started = MachineScheduler.run(env.scheduler, Chart, "finish")

    assert execute_pending(env.scheduler) == 2
    assert MachineScheduler.count(env.scheduler, started.run_uid) == {"ignored": 1, "succeeded": 1}


def test_an_instance_removed_before_its_job_runs_is_ignored(any_env: Env) -> None:
    case = open_case(any_env, load=lambda name: None)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))
    run = case.start()
    case.states.forget("a-1")
    any_env.execute_pending()
    assert case.count(run) == {"ignored": 2}


def test_a_target_whose_work_horse_died_is_lost_at_once_and_the_others_continue(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))
    run = case.start()
    target = parse_target_job_id(any_env.queued()[0])
    assert isinstance(target, TargetJobId)
    now = any_env.clock.now()
    any_env.runtime.database.transact(lambda c: fan_out_targets.claim(c, target, new_uid(now), now))

    horse_died(any_env.runtime, Job.create(module_level, id=str(target), connection=any_env.redis))
    any_env.execute_pending()

    assert case.count(run) == {"lost": 1, "succeeded": 1}
    (row,) = MachineScheduler.targets(any_env.scheduler, run.uid, status="lost")
    assert row["error"] == "its work horse died"


def test_an_instance_is_loaded_sent_its_event_and_saved(any_env: Env) -> None:
    rows = {"a-1": "approved"}

    @dataclass
    class Row:
        id: str
        state: Any

    def save(instance_id: str, row: Row) -> None:
        rows[instance_id] = row.state

    case = open_case(any_env, load=lambda name: Row(name, rows[name]), save=save)
    case.states.put("a-1")

    case.run()

    assert rows == {"a-1": "expired"}, "the model's own state counts, not the one rqsched knew"
    assert_state(any_env.scheduler, case.machine, "a-1", "expired")


def test_load_may_return_the_machine_itself(any_env: Env) -> None:
    made: dict[str, Any] = {}
    saved: list[Any] = []
    case = open_case(any_env, {"SEND_REMINDER": None}, load=lambda name: made[name], save=lambda *a: saved.append(a))
    model = Application("a-1", "approved")
    made["a-1"] = case.machine(model)
    case.states.put("a-1", "approved")

    case.run("SEND_REMINDER")

    assert (case.log, saved) == (["reminded a-1"], [("a-1", model)])


def test_without_load_and_save_an_instance_is_its_state(any_env: Env) -> None:
    class Lamp(StateMachine):
        on = State(initial=True)
        off = State()
        TURN_OFF = on.to(off)
        turn_on = off.to(on)
        schedules = {"TURN_OFF": None}  # noqa: RUF012 - as users write it

    machine(workflows=any_env.runtime.workflows)(Lamp)
    MachineStates(any_env.scheduler, Lamp).put_all({"hall": "on", "attic": "off"})

    done = MachineScheduler.run(any_env.scheduler, Lamp, "TURN_OFF")
    execute_pending(any_env.scheduler)

    assert done.targets == 1
    assert_state(any_env.scheduler, Lamp, "hall", "off")


def test_an_event_is_sent_again_when_another_process_moved_the_instance_meanwhile(any_env: Env) -> None:
    seen: list[str] = []

    class Job(StateMachine):
        idle = State(initial=True)
        busy = State()
        NUDGE = idle.to(busy) | busy.to(busy)
        rest = busy.to(idle)
        schedules = {"NUDGE": None}  # noqa: RUF012 - as users write it

        def on_NUDGE(self, source: State) -> None:  # noqa: N802 - the event's name
            seen.append(source.id)
            if len(seen) == 1:
                MachineStates(any_env.scheduler, Job).put("j-1", "busy")
                any_env.clock.advance(timedelta(microseconds=1))

    machine(workflows=any_env.runtime.workflows)(Job)
    MachineStates(any_env.scheduler, Job).put("j-1")

    MachineScheduler.run(any_env.scheduler, Job, "NUDGE")
    execute_pending(any_env.scheduler)

    assert seen == ["idle", "busy"]
    assert_state(any_env.scheduler, Job, "j-1", "busy")


def test_a_due_schedule_sends_its_event_to_all_matching_instances(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))
    schedule = assert_has_schedule(any_env.scheduler, case.schedule())

    any_env.clock.advance(timedelta(hours=12, minutes=10))
    rows = run_due(any_env.scheduler)

    assert [row["outcome"] for row in rows] == ["triggered"]
    assert newest(schedule).result == {"targets": 2, "filtered": 0}
    assert case.log == ["a-1", "a-2"]


def test_a_timer_of_one_instance_is_a_schedule_with_one_occurrence(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put_all(dict.fromkeys(["a-1", "a-2"]))

    def expire(instance_id: str) -> None:
        live = case.machine(Application(instance_id, case.states.get(instance_id)))
        live.send("CHECK_EXPIRY")
        case.states.put(instance_id, live)

    any_env.register("expire-one", expire)
    timer = any_env.create("expire-a-1", Once(any_env.clock.now() + timedelta(hours=1)), "expire-one", args=["a-1"])
    any_env.run_due(timedelta(hours=1))

    assert (timer.refresh().status, case.log) == ("done", ["a-1"])
    assert [case.states.get(name) for name in ("a-1", "a-2")] == ["expired", "waiting"]


def test_an_event_is_sent_by_hand_without_a_schedule(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put("a-1")

    done = MachineScheduler.run(any_env.scheduler, case.machine, "CHECK_EXPIRY", queue="low")

    assert (done.targets, done.filtered) == (1, 0)
    assert execute_pending(any_env.scheduler, "low") == 1
    assert MachineScheduler.count(any_env.scheduler, done.run_uid) == {"succeeded": 1}
    with pytest.raises(InvalidInputError, match="does not declare"):
        MachineScheduler.run(any_env.scheduler, case.machine, "approve")
    with pytest.raises(InvalidInputError, match="control queue"):
        MachineScheduler.run(any_env.scheduler, case.machine, "CHECK_EXPIRY", queue="rqsched")


def test_purging_a_schedule_removes_its_targets(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put("a-1")
    run = case.run()
    any_env.scheduler.get(EXPIRY).delete(purge=True)
    assert case.count(run) == {}


def test_targets_are_pruned_with_their_run(any_env: Env) -> None:
    case = open_case(any_env)
    ended: list[Any] = []
    for _ in range(2):
        case.states.put("a-1", "waiting")
        ended.append(case.run())
    case.states.put("a-1", "waiting")
    waits = case.start()
    any_env.advance(timedelta(days=100))
    other, done = (any_env.scheduler.prune(namespace=namespace) for namespace in ("other", None))
    assert (other.targets, done.targets, done.runs) == (0, 1, 1)
    assert [case.count(run) for run in (*ended, waits)] == [{}, {"succeeded": 1}, {"pending": 1}]


def test_a_run_with_many_targets_is_pruned_in_small_steps(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put("a-1")
    many = case.run()
    case.run()
    now = any_env.clock.now()
    batch = Batch(many.uid, "x", now, 1, many.state.schedule_uid)
    ended = sa.update(rows).where(rows.c.run_uid == many.uid).values(status="succeeded", ended_at=now)
    names = [f"b-{number}" for number in range(1_099)]
    any_env.runtime.database.transact(lambda c: fan_out_targets.record(c, batch, names, 2, now))
    any_env.runtime.database.transact(lambda c: c.execute(ended))
    any_env.advance(timedelta(days=100))
    assert any_env.scheduler.prune(dry_run=True).targets == 1_100
    steps: list[Any] = []
    any_env.scheduler.prune(progress=lambda step: steps.append((step.targets, step.runs)))
    assert [step for step in steps if step != (0, 0)] == [(1_000, 0), (100, 1)]
    assert case.count(many) == {}


def test_targets_of_a_fan_out_by_hand_are_pruned_by_age_and_belong_to_no_namespace(any_env: Env) -> None:
    case = open_case(any_env)
    case.states.put("a-1")
    run_uid = MachineScheduler.run(any_env.scheduler, case.machine, "CHECK_EXPIRY").run_uid
    execute_pending(any_env.scheduler)
    any_env.advance(timedelta(days=100))
    done = [
        any_env.scheduler.prune(**options).targets
        for options in ({"namespace": "default"}, {"retention": "5"}, {"dry_run": True}, {})
    ]
    assert (done, MachineScheduler.count(any_env.scheduler, run_uid)) == ([0, 0, 1, 1], {})


def test_targets_are_read_page_by_page_in_the_resolvers_order(any_env: Env) -> None:
    names = [f"a-{number}" for number in (3, 1, 2)]
    case = open_case(any_env, {"CHECK_EXPIRY": lambda: names})
    case.states.put_all(dict.fromkeys(names))
    run = case.run()
    first = MachineScheduler.targets(any_env.scheduler, run.uid, limit=2)
    rest = MachineScheduler.targets(any_env.scheduler, run.uid, after=first[-1]["number"])
    assert [row["target_id"] for row in (*first, *rest)] == names


def test_assert_state_names_the_state_the_instance_is_in(any_env: Env) -> None:
    case, scheduler = open_case(any_env), any_env.scheduler
    case.states.put("a-1", "approved")

    assert_state(scheduler, case.machine, "a-1", "approved")
    assert_state(scheduler, "ApplicationMachine", "a-1", "approved")

    wrong: dict[str, Callable[[], None]] = {
        "instance 'a-1' of ApplicationMachine is in 'approved', not in 'expired'": lambda: assert_state(
            scheduler, case.machine, "a-1", "expired"
        ),
        "ApplicationMachine has no instance 'a-2'": lambda: assert_state(scheduler, case.machine, "a-2", "expired"),
    }
    for message, check in wrong.items():
        with pytest.raises(AssertionError, match=message):
            check()


def test_an_event_is_not_sent_where_redis_belongs_to_another_database(
    env: Env, make_env: MakeEnv, tmp_path: Path
) -> None:
    case = open_case(other := make_env(database_url=f"sqlite:///{tmp_path / 'other.db'}"))
    case.states.put_all({"a-1": None})
    env.recover()

    with pytest.raises(WrongDatabaseError, match="Set RQSCHED_DATABASE_URL"):
        MachineScheduler.run(other.scheduler, case.machine, "CHECK_EXPIRY")

    assert other.runtime.database.read(lambda connection: connection.execute(sa.select(rows)).all()) == []
