"""The declaration of a machine (WHAT) and its registration by the application (WHEN). No run is executed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from statemachine import Event, State, StateMachine

from rqsched import Cron, Every
from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.machines import MachineScheduler, MachineStates, machine
from rqsched.testing import assert_has_schedule
from rqsched.timing import Timing
from rqsched.workflows import Registry
from tests.support.env import Env
from tests.support.machine_case import EXPIRY, REMINDER, open_case


def make_class(schedules: Any) -> Any:
    class Ticket(StateMachine):
        new = State(initial=True)
        closed = State(final=True)
        close = new.to(closed)

    made: Any = Ticket
    made.schedules = schedules
    return made


def test_each_event_a_machine_declares_is_a_workflow_with_the_machines_routing() -> None:
    workflows = Registry()

    made = machine(name="support", queue="slow", timeout=5, workflows=workflows)(make_class({"close": None}))

    (known,) = workflows.all()
    assert (known.name, known.queue, known.timeout) == ("machine:support:close", "slow", 5)
    assert known.path.endswith("Ticket.close")
    assert made.__name__ == "Ticket", "the class itself is left alone"


def test_an_event_may_be_given_as_the_event_object_of_the_machine() -> None:
    workflows = Registry()
    made = make_class(None)
    made.schedules = {made.close: None}
    machine(workflows=workflows)(made)
    assert [known.name for known in workflows.all()] == ["machine:Ticket:close"]
    assert isinstance(MachineScheduler.register(made, made.close, workflows=workflows).daily_at("1:00"), Timing)


def test_an_event_may_be_given_as_what_the_class_body_calls_it() -> None:
    workflows = Registry()

    @machine(workflows=workflows)
    class Door(StateMachine):
        opened = State(initial=True)
        closed = State()
        locked = State(final=True)

        close = opened.to(closed) | closed.to.itself()
        lock = Event(closed.to(locked))
        bolt = Event(closed.to(locked), id="BOLT")
        schedules = {close: None, lock: None, bolt: None}  # noqa: RUF012 - as users write it

    names = {known.name for known in workflows.all()}
    assert names == {f"machine:Door:{event}" for event in ("close", "lock", "BOLT")}
    assert isinstance(MachineScheduler.register(Door, Door.close, workflows=workflows), Timing)


def test_transitions_that_are_no_event_of_the_class_are_refused() -> None:
    made = make_class(None)
    other = make_class(None)
    made.schedules = {other.states[0].to.itself(): None}
    with pytest.raises(InvalidInputError, match="has no event"):
        machine(workflows=Registry())(made)


def test_a_machine_without_schedules_is_known_and_has_no_workflow() -> None:
    workflows = Registry()
    made = make_class({})
    del made.schedules
    machine(workflows=workflows)(made)
    assert workflows.all() == []


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an event the machine does not have": (lambda: machine(make_class({"reopen": None})), "no event 'reopen'; it has"),
    "a state in place of an event": (lambda: machine(make_class({"closed": None})), "no event 'closed'"),
    "an event that is no text": (lambda: machine(make_class({7: None})), "a key is an event, or its text"),
    "a resolver that cannot be called": (lambda: machine(make_class({"close": ["a"]})), "the resolver of close"),
    "schedules that are a list": (lambda: machine(make_class(["close"])), "must be a dict"),
    "a class that is no machine": (lambda: machine(dict), "not a StateMachine"),  # type: ignore[type-var]
    "load without save": (lambda: machine(load=str)(make_class({})), "save must be given together"),
    "a name that is no id": (lambda: machine(name="a b")(make_class({})), "is refused"),
}


@pytest.mark.parametrize(("define", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_an_invalid_machine_is_refused_where_it_is_defined(define: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        define()


def test_sync_creates_an_ordinary_schedule_of_a_registered_event(any_env: Env) -> None:
    case, scheduler = open_case(any_env), any_env.scheduler

    case.register().daily_at("00:10").environments(["production"]).without_overlapping()

    assert scheduler.list().items == [], "nothing is written before sync"
    assert scheduler.sync().created == [EXPIRY]
    schedule = assert_has_schedule(scheduler, EXPIRY, workflow=EXPIRY, spec=Cron("10 0 * * *"), status="active")
    assert schedule.describe().policies["environments"] == ["production"]
    assert schedule.state.policies.overlap is OverlapPolicy.SKIP
    assert scheduler.sync().unchanged == [EXPIRY]


def test_one_event_may_be_registered_for_several_schedules(any_env: Env) -> None:
    case, scheduler = open_case(any_env), any_env.scheduler
    case.register("CHECK_EXPIRY").daily_at("00:10")
    case.register("SEND_REMINDER").daily_at("11:00").environments("production")
    case.register("SEND_REMINDER", schedule_id="second-reminder").every("5h")

    assert scheduler.sync().created == [EXPIRY, REMINDER, "second-reminder"]

    assert_has_schedule(scheduler, EXPIRY, workflow=EXPIRY, spec=Cron("10 0 * * *"))
    assert_has_schedule(scheduler, REMINDER, workflow=REMINDER, spec=Cron("0 11 * * *"))
    assert_has_schedule(scheduler, "second-reminder", workflow=REMINDER, spec=Every("5h"))


def test_an_event_that_is_declared_and_not_registered_never_runs(any_env: Env) -> None:
    case = open_case(any_env)
    case.register("CHECK_EXPIRY").daily_at("00:10")
    any_env.scheduler.sync()
    assert [schedule.schedule_id for schedule in any_env.scheduler.iter()] == [EXPIRY]


def test_an_event_that_is_not_declared_is_refused_at_registration(env: Env) -> None:
    case = open_case(env, {"CHECK_EXPIRY": None})
    for event in ("SEND_REMINDER", "NO_SUCH_EVENT"):
        with pytest.raises(InvalidInputError, match=f"does not declare '{event}'.* it declares CHECK_EXPIRY"):
            case.register(event)
    assert env.scheduler.sync().created == []


def test_a_class_without_the_decorator_is_refused_even_as_a_subclass_of_a_decorated_one() -> None:
    decorated = machine(workflows=Registry())(make_class({"close": None}))

    class Below(decorated):  # type: ignore[misc, valid-type]
        pass

    for plain in (make_class({"close": None}), Below):
        with pytest.raises(InvalidInputError, match="decorate the class with @machine"):
            MachineScheduler.register(plain, "close")


def test_steps_of_the_application_extend_the_builder(any_env: Env) -> None:
    class Ours(Timing):
        def nightly(self) -> Ours:
            return self.daily_at("00:10").timezone("Europe/Istanbul")

    Ours.extend("countries", lambda builder, *codes: builder.option(labels={"countries": ",".join(codes)}))
    case = open_case(any_env)

    case.register(builder=Ours).nightly().countries("TR", "DE").without_overlapping()
    any_env.scheduler.sync()

    schedule = assert_has_schedule(any_env.scheduler, EXPIRY, spec=Cron("10 0 * * *", "Europe/Istanbul"))
    assert schedule.describe().labels == {"countries": "TR,DE"}


def test_sync_covers_registrations_and_decorators(env: Env) -> None:
    case = open_case(env)

    @env.scheduler.every("1h")
    def tidy() -> None: ...

    timing = case.register().daily_at("00:10")
    env.scheduler.sync()
    timing.daily_at("00:20")
    assert env.scheduler.sync(delete_removed=True).updated == [EXPIRY]
    assert set(env.scheduler.sync([], delete_removed=True).removed) == {EXPIRY, "tidy"}


def test_an_instance_is_put_moved_and_forgotten(any_env: Env) -> None:
    states = open_case(any_env).states
    assert states.get("a-1") is None
    states.put("a-1")
    assert states.get("a-1") == "waiting"
    states.put("a-1", "approved")
    assert states.get("a-1") == "approved"
    assert states.forget("a-1")
    assert not states.forget("a-1")
    assert states.get("a-1") is None


def test_the_state_of_a_live_machine_is_stored_with_its_parent_states(any_env: Env) -> None:
    class Order(StateMachine):
        class shopping(State.Compound):  # noqa: N801 - a state
            cart = State(initial=True)
            payment = State()
            pay = cart.to(payment)

        closed = State(final=True)
        close = shopping.to(closed)

    states = MachineStates(any_env.scheduler, machine(workflows=Registry())(Order))
    live = Order()
    live.pay()  # type: ignore[attr-defined]
    states.put_all({"o-1": live, "o-2": None, "o-3": "closed"})
    assert [states.get(f"o-{number}") for number in (1, 2, 3)] == ["shopping payment", "shopping cart", "closed"]


@pytest.mark.parametrize(
    ("instance_id", "state"),
    [("a", "unheard_of"), ("a", ""), ("", None), ("a" * 256, None), ("a\n", None)],
    ids=["no such state", "no state", "no id", "a long id", "a line feed"],
)
def test_an_invalid_instance_id_or_state_is_refused(env: Env, instance_id: str, state: str | None) -> None:
    with pytest.raises(InvalidInputError):
        open_case(env).states.put(instance_id, state)
