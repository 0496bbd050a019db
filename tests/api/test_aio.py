"""Waymark's document row by row, and the main operations awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, get_args

import pytest

from rqsched import Cron, Every, Once, RetryPolicy, Spec, workflow
from rqsched.aio import (
    AsyncRunHandle,
    AsyncRuns,
    AsyncScheduleHandle,
    AsyncScheduler,
    ScheduleInfo,
    ScheduleStatus,
    ScheduleType,
    delete_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    run,
    schedule_workflow,
    use,
)
from rqsched.errors import InvalidInputError, RqschedError, ScheduleNotFoundError, UnknownWorkflowError
from rqsched.features.backfill.chain import BackfillRange
from rqsched.kernel.decide.policy import OverlapPolicy
from rqsched.testing import run_due
from rqsched.workflows import make_workflow, registry
from tests.support.env import DAY, HOUR, MINUTE, NOON, SECOND, Env, MakeEnv, newest, occurrences, statuses, types


@workflow
class DataSync:
    """A workflow as the document writes them."""

    name = "data_sync"

    async def run(self, region: str = "nowhere") -> str:
        await asyncio.sleep(0)
        return f"synced {region}"


SYNC = registry.get("data_sync")
registry.remove("data_sync")


@pytest.fixture
def waymark(any_env: Env) -> Iterator[Env]:
    assert SYNC is not None
    any_env.runtime.workflows.add(SYNC)
    use(any_env.scheduler)
    yield any_env
    use(None)


def await_(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def register(**options: Any) -> str:
    given = {"schedule_name": "hourly", "schedule": "0 * * * *", **options}
    return str(await_(schedule_workflow(DataSync, **given)))


def test_a_cron_schedule_runs_the_workflow_with_its_inputs(waymark: Env) -> None:
    assert register(schedule_name="hourly-us-east", inputs={"region": "us-east"}) == "data_sync:hourly-us-east"
    schedule = waymark.scheduler.get("data_sync:hourly-us-east")
    assert schedule.next_run_at == NOON + HOUR

    waymark.run_due(HOUR)

    assert newest(schedule).result == "synced us-east"


def test_what_is_told_of_failures_must_be_there(make_env: MakeEnv) -> None:
    env = make_env(on_failure="nobody")
    assert SYNC is not None
    env.runtime.workflows.add(SYNC)
    use(env.scheduler)
    try:
        with pytest.raises(UnknownWorkflowError, match="no workflow named 'nobody'"):
            register()
    finally:
        use(None)
    assert list(env.scheduler.iter()) == []


def test_one_workflow_runs_on_more_than_one_cadence(waymark: Env) -> None:
    register(schedule_name="east", inputs={"region": "east"})
    register(schedule_name="west", inputs={"region": "west"})
    waymark.run_due(HOUR)
    assert {info.schedule_name for info in await_(list_schedules())} == {"east", "west"}
    assert {newest(s).result for s in waymark.scheduler.iter()} == {"synced east", "synced west"}


def test_an_interval_fires_first_one_interval_from_now_and_does_not_drift(waymark: Env) -> None:
    waymark.advance(17 * SECOND)
    register(schedule=timedelta(minutes=5))
    schedule = waymark.scheduler.get("data_sync:hourly")
    assert schedule.next_run_at == NOON + 17 * SECOND + 5 * MINUTE

    waymark.tick(5 * MINUTE + 50 * SECOND)
    waymark.advance(4 * MINUTE)
    waymark.execute_pending()

    assert schedule.refresh().next_run_at == NOON + 17 * SECOND + 10 * MINUTE, "a slow run moves nothing"


def test_registering_again_updates_in_place_and_keeps_the_next_time_even_of_another_cadence(waymark: Env) -> None:
    register(schedule=timedelta(minutes=5))
    waymark.advance(MINUTE)

    register(schedule=timedelta(minutes=30), inputs={"region": "eu"}, allow_duplicate=True, priority=3)

    (info,) = await_(list_schedules())
    assert (info.next_run_at, info.interval_seconds) == (NOON + 5 * MINUTE, 1800)
    assert (info.inputs, info.allow_duplicate, info.priority) == ({"region": "eu"}, True, 3)
    waymark.run_due(4 * MINUTE)
    assert await_(list_schedules())[0].next_run_at == NOON + 31 * MINUTE
    assert types(waymark.scheduler.get(info.id)) == ["Created", "Updated", "Triggered"]


def test_a_deploy_that_registers_the_same_again_changes_nothing(waymark: Env) -> None:
    register(schedule=timedelta(minutes=5))
    waymark.advance(MINUTE)
    register(schedule=timedelta(minutes=5))
    assert types(waymark.scheduler.get("data_sync:hourly")) == ["Created"]


@pytest.mark.parametrize("again", ["0 * * * *", timedelta(minutes=7)], ids=["the same", "another cadence"])
def test_registering_again_sets_a_paused_one_active_and_keeps_its_next_time(waymark: Env, again: Any) -> None:
    register()
    await_(pause_schedule(DataSync, schedule_name="hourly"))
    waymark.advance(MINUTE)

    register(schedule=again)

    (info,) = await_(list_schedules())
    assert (info.status, info.next_run_at) == ("active", NOON + HOUR)


def test_registering_again_sets_a_dead_one_active(waymark: Env) -> None:
    register()
    schedule = waymark.scheduler.get("data_sync:hourly")
    schedule.update(retry=RetryPolicy(max_retries=0, then="dead"), kwargs={"unknown": "argument"})
    waymark.run_due(HOUR)
    assert schedule.refresh().status == "dead"

    register()

    assert schedule.refresh().status == "active"
    assert schedule.next_run_at == NOON + 2 * HOUR


def test_the_newest_registered_version_of_the_workflow_runs(waymark: Env) -> None:
    register()
    waymark.register("data_sync", lambda region: f"redeployed in {region}")
    waymark.run_due(HOUR)
    assert newest(waymark.scheduler.get("data_sync:hourly")).result == "redeployed in nowhere"


def test_what_run_defaults_to_is_recorded_at_registration_and_stays_until_the_next_one(waymark: Env) -> None:
    def sync(region: str, size: int = 3, at: object = NOON, *rest: int, dry: bool = False, **more: int) -> str:
        return f"{region} {size} {dry} {at} {rest} {more}"

    def resized(region: str, size: int = 9, *, dry: bool = True) -> str:
        return f"{region} {size} {dry}"

    waymark.register("sync", sync)
    await_(schedule_workflow("sync", schedule_name="x", schedule="@hourly", inputs={"region": "eu", "dry": True}))
    assert listed("sync:x").inputs == {"region": "eu", "size": 3, "dry": True}, "what is no JSON stays with the code"
    waymark.run_due(HOUR)
    schedule = waymark.scheduler.get("sync:x")
    assert newest(schedule).result == f"eu 3 True {NOON} () {{}}"

    waymark.register("sync", resized)
    waymark.run_due(HOUR)
    assert newest(schedule).result == "eu 3 True"
    await_(schedule_workflow("sync", schedule_name="x", schedule="@hourly", inputs={"region": "eu"}))
    assert listed("sync:x").inputs == {"region": "eu", "size": 9, "dry": True}


def test_defaults_of_a_class_and_of_a_dotted_path_are_recorded_and_none_of_what_is_called_for_targets(
    waymark: Env,
) -> None:
    register()
    assert listed("data_sync:hourly").inputs == {"region": "nowhere"}

    path = f"{__name__}.greet"
    await_(schedule_workflow(greet, schedule_name="x", schedule="@daily"))
    assert listed(f"{path}:x").inputs == {"name": "you"}

    waymark.runtime.workflows.add(make_workflow("remind", greet, targets=lambda: ["a"]))
    await_(schedule_workflow("remind", schedule_name="x", schedule="@daily"))
    assert listed("remind:x").inputs == {}


def greet(name: str = "you") -> str:
    return f"hello {name}"


TYPES: dict[str, tuple[Any, tuple[str, str | None, float | None]]] = {
    "a cron": (Cron("0 2 * * *"), ("cron", "0 2 * * *", None)),
    "two crons": ([Cron("0 2 * * *"), Cron("0 4 * * 1")], ("cron", "0 2 * * *", None)),
    "an interval": (Every("5m"), ("interval", None, 300)),
    "an interval from completion": (Every("5m", from_completion=True), ("interval", None, 300)),
    "an instant": (Once(NOON + DAY), ("once", None, None)),
    "a mixture": (Spec([Cron("0 2 * * *"), Every("5m")]), ("mixed", "0 2 * * *", 300)),
}


@pytest.mark.parametrize(("spec", "wanted"), TYPES.values(), ids=TYPES.keys())
def test_each_kind_of_timing_of_any_surface_has_its_type(
    waymark: Env, spec: Any, wanted: tuple[str, str | None, float | None]
) -> None:
    waymark.scheduler.create("other", "data_sync", spec)

    info = listed("other")

    assert (info.schedule_type, info.cron_expression, info.interval_seconds) == wanted
    assert info.schedule_type in get_args(ScheduleType)


def test_each_status_is_told_apart_and_deleted_ones_are_listed_when_asked_for(waymark: Env) -> None:
    for name in ("active", "paused", "done", "dead", "deleted"):
        register(schedule_name=name)
    await_(pause_schedule(DataSync, schedule_name="paused"))
    waymark.scheduler.get("data_sync:done").update(max_runs=1)
    waymark.scheduler.get("data_sync:dead").update(
        retry=RetryPolicy(max_retries=0, then="dead"), kwargs={"unknown": "argument"}
    )
    await_(delete_schedule(DataSync, schedule_name="deleted"))
    waymark.run_due(HOUR)

    found = {info.schedule_name: info.status for info in await_(list_schedules())}
    assert found == {name: name for name in ("active", "paused", "done", "dead")}
    for status in get_args(ScheduleStatus):
        assert [info.schedule_name for info in await_(list_schedules(status_filter=status))] == [status]


def test_the_list_is_in_the_order_of_workflows_and_names(waymark: Env) -> None:
    for name in ("west", "east"):
        register(schedule_name=name)
    waymark.register("archive", print)
    await_(schedule_workflow("archive", schedule_name="yearly", schedule="@yearly"))
    listed = [(info.workflow_name, info.schedule_name) for info in await_(list_schedules())]
    assert listed == [("archive", "yearly"), ("data_sync", "east"), ("data_sync", "west")]


def test_a_schedule_without_jitter_has_none(waymark: Env) -> None:
    register()
    (info,) = await_(list_schedules())
    assert info.jitter_seconds is None


def test_jitter_delays_each_fire_by_at_most_its_length(waymark: Env) -> None:
    register(jitter=timedelta(seconds=30))
    schedule = waymark.scheduler.get("data_sync:hourly")
    assert schedule.due_at is not None
    assert schedule.next_run_at is not None
    assert timedelta(0) <= schedule.due_at - schedule.next_run_at <= 30 * SECOND
    assert await_(list_schedules())[0].jitter_seconds == 30


def test_a_workflow_may_be_named(waymark: Env) -> None:
    named: Any = "data_sync"
    assert await_(schedule_workflow(named, schedule_name="x", schedule="@daily")) == "data_sync:x"
    assert await_(pause_schedule("data_sync", schedule_name="x"))


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no name": ({"schedule_name": ""}, ValueError),
    "a blank name": ({"schedule_name": "  "}, ValueError),
    "a name without end": ({"schedule_name": "a" * 1_001}, ValueError),
    "a cron that is none": ({"schedule": "every day"}, ValueError),
    "an interval of nothing": ({"schedule": timedelta(0)}, ValueError),
    "an interval backwards": ({"schedule": timedelta(seconds=-5)}, ValueError),
    "a cadence that is a number": ({"schedule": 300}, TypeError),
    "jitter backwards": ({"jitter": timedelta(seconds=-1)}, ValueError),
    "inputs that are a list": ({"inputs": ["eu"]}, TypeError),
    "inputs that are no JSON": ({"inputs": {"at": NOON}}, ValueError),
    "a priority in words": ({"priority": "high"}, ValueError),
}


@pytest.mark.parametrize(("options", "error"), BAD.values(), ids=BAD.keys())
def test_arguments_are_checked_and_nothing_is_written(
    env: Env, options: dict[str, Any], error: type[Exception]
) -> None:
    assert SYNC is not None
    env.runtime.workflows.add(SYNC)
    use(env.scheduler)
    try:
        with pytest.raises(error) as caught:
            register(**options)
        assert isinstance(caught.value, RqschedError)
        assert await_(list_schedules()) == []
    finally:
        use(None)


def test_a_value_that_cannot_be_a_workflow_is_refused(waymark: Env) -> None:
    unknown: Any = "nobody"
    with pytest.raises(UnknownWorkflowError):
        await_(schedule_workflow(unknown, schedule_name="x", schedule="@daily"))
    nothing: Any = 5
    with pytest.raises(InvalidInputError):
        await_(schedule_workflow(nothing, schedule_name="x", schedule="@daily"))


def test_pausing_keeps_the_row_and_stops_firing(waymark: Env) -> None:
    register()
    assert await_(pause_schedule(DataSync, schedule_name="hourly")) is True
    assert await_(pause_schedule(DataSync, schedule_name="hourly")) is True, "again: no error, no event"
    assert waymark.run_due(DAY) == []
    schedule = waymark.scheduler.get("data_sync:hourly")
    assert (schedule.status, types(schedule)) == ("paused", ["Created", "Paused"])


def test_a_fire_missed_while_paused_happens_once_and_then_the_cadence_continues(waymark: Env) -> None:
    register()
    await_(pause_schedule(DataSync, schedule_name="hourly"))
    waymark.advance(3 * HOUR + MINUTE)

    assert await_(resume_schedule(DataSync, schedule_name="hourly")) is True

    schedule = waymark.scheduler.get("data_sync:hourly")
    run_due(waymark.scheduler)
    assert (statuses(schedule), schedule.refresh().next_run_at) == (["succeeded"], NOON + 4 * HOUR)


def test_without_a_missed_fire_resuming_waits_for_the_next_one(waymark: Env) -> None:
    register()
    await_(pause_schedule(DataSync, schedule_name="hourly"))
    waymark.advance(30 * MINUTE)
    await_(resume_schedule(DataSync, schedule_name="hourly"))
    assert run_due(waymark.scheduler) == []
    assert await_(resume_schedule(DataSync, schedule_name="hourly")) is True, "an active one stays so"


def test_a_deleted_schedule_can_be_created_again_under_the_same_name(waymark: Env) -> None:
    register()
    first = waymark.scheduler.get("data_sync:hourly")

    assert await_(delete_schedule(DataSync, schedule_name="hourly")) is True
    assert await_(list_schedules()) == []
    register()

    assert waymark.scheduler.get("data_sync:hourly").uid != first.uid
    assert first.refresh().status == "deleted"


@pytest.mark.parametrize("call", [pause_schedule, resume_schedule, delete_schedule])
def test_operations_on_an_unknown_schedule_return_false(waymark: Env, call: Any) -> None:
    assert await_(call(DataSync, schedule_name="nothing")) is False


def test_the_list_shows_timing_state_and_behaviour(waymark: Env) -> None:
    register(inputs={"region": "eu"}, jitter=timedelta(seconds=5), priority=2)
    waymark.run_due(HOUR + 10 * SECOND)
    schedule = waymark.scheduler.get("data_sync:hourly")

    (info,) = await_(list_schedules())

    assert info == ScheduleInfo(
        id="data_sync:hourly",
        workflow_name="data_sync",
        schedule_name="hourly",
        schedule_type="cron",
        cron_expression="0 * * * *",
        interval_seconds=None,
        jitter_seconds=5,
        inputs={"region": "eu"},
        status="active",
        next_run_at=NOON + 2 * HOUR,
        last_run_at=NOON + HOUR + 10 * SECOND,
        last_instance_id=newest(schedule).instance_id,
        run_count=1,
        created_at=NOON,
        updated_at=schedule.updated_at,
        priority=2,
        allow_duplicate=False,
    )


def test_the_list_filters_by_status(waymark: Env) -> None:
    register(schedule_name="a")
    register(schedule_name="b", schedule=timedelta(minutes=1))
    await_(pause_schedule(DataSync, schedule_name="b"))

    def names(status: str | None) -> list[str]:
        return [info.schedule_name for info in await_(list_schedules(status_filter=status))]

    assert (sorted(names(None)), names("active"), names("paused")) == (["a", "b"], ["a"], ["b"])
    with pytest.raises(ValueError, match="status_filter"):
        names("sleeping")


def test_while_an_instance_is_queued_or_running_no_other_is_queued(waymark: Env) -> None:
    register()
    schedule = waymark.scheduler.get("data_sync:hourly")
    waymark.tick(HOUR)
    waymark.tick(HOUR)
    assert occurrences(schedule) == [NOON + HOUR]

    register(allow_duplicate=True)
    waymark.tick(HOUR)
    assert occurrences(schedule) == [NOON + HOUR, NOON + 3 * HOUR]


def test_the_main_operations_are_awaited_from_create_to_purge(any_env: Env) -> None:
    schedules = AsyncScheduler(any_env.scheduler)

    async def story() -> list[str]:
        created = await schedules.create("nightly", "note", Cron("0 2 * * *"), args=[1], queue="high")
        assert (created.status, created.schedule_id, created.run_count) == ("active", "nightly", 0)
        assert (await created.pause("why")).status == "paused"
        assert (await (await schedules.get("nightly")).resume()).status == "active"
        await created.update(queue="low")
        assert (await created.describe()).queue == "low"
        assert (await created.trigger()).outcome == "triggered"
        assert len((await created.runs()).items) == 1
        assert (await created.run("1")).kind == "manual"
        assert len(await created.upcoming(3)) == 3
        assert len((await created.backfill(NOON - 2 * DAY, NOON, overlap="allow")).rows) == 2
        wanted = BackfillRange(NOON - 3 * DAY, NOON, OverlapPolicy.ALLOW_ALL)
        assert (await created.backfill(wanted.start_at, wanted.end_at, dry_run=True)).started == 1
        assert [done.started async for done in created.backfill_in_chunks(wanted)] == [1]
        handle, outcome = await schedules.upsert("nightly", "note", Cron("0 2 * * *"))
        assert (handle.uid, outcome) == (created.uid, "updated")
        assert [found.schedule_id for found in (await schedules.list(status="active")).items] == ["nightly"]
        streamed = [event.event_type async for event in created.iter_history()]
        assert len(streamed) == len(await created.history()) == len(await (await schedules.newest("nightly")).history())
        await created.delete(purge=True)
        with pytest.raises(ScheduleNotFoundError):
            await schedules.newest("nightly")
        return streamed

    assert await_(story())[:4] == ["ScheduleCreated", "SchedulePaused", "ScheduleResumed", "ScheduleUpdated"]


def test_no_async_method_returns_a_blocking_handle(env: Env) -> None:
    schedules = AsyncScheduler(env.scheduler)
    cron = Cron("0 2 * * *")

    async def calls() -> dict[type, dict[str, list[object]]]:
        schedule = await schedules.create("nightly", "note", cron)
        triggered = await schedule.trigger()
        run = await schedule.run("1")
        ended = await _ended(schedules)
        return {
            AsyncScheduler: {
                "create": [schedule],
                "upsert": [(await schedules.upsert("nightly", "note", cron))[0]],
                "get": [await schedules.get("nightly")],
                "newest": [await schedules.newest("nightly")],
                "list": [*(await schedules.list()).items],
                "iter": [found async for found in schedules.iter()],
            },
            AsyncRuns: {
                "get": [await schedules.runs.get(run.uid)],
                "list": [found for _, found in (await schedules.runs.list()).items],
                "iter": [found async for _, found in schedules.runs.iter()],
            },
            AsyncScheduleHandle: {
                "trigger": [triggered.run],
                "run": [run],
                "runs": [*(await schedule.runs()).items],
                "iter_runs": [found async for found in schedule.iter_runs()],
                "refresh": [await schedule.refresh()],
                "update": [await schedule.update(note="n")],
                "pause": [await schedule.pause()],
                "resume": [await schedule.resume()],
                "skip_next": [await schedule.skip_next()],
                "restart": [await (await _done(env, schedules)).restart()],
                "delete": [await schedule.delete()],
            },
            AsyncRunHandle: {
                "refresh": [await run.refresh()],
                "cancel": [await run.cancel()],
                "terminate": [await run.terminate()],
                "wait": [await run.wait(30)],
                "run_again": [await ended.run_again()],
                "retry": [await (await schedules.runs.get(ended.uid)).retry()],
            },
        }

    for kind, returned in await_(calls()).items():
        assert set(returned) == _returning_handles(kind), "each such method is called"
        for name, found in returned.items():
            assert {type(one) for one in found} <= {AsyncScheduleHandle, AsyncRunHandle}, name
            assert found, name


async def _done(env: Env, schedules: AsyncScheduler) -> AsyncScheduleHandle:
    schedule = await schedules.create("once", "note", Every("1h"), max_runs=1)
    await run(env.run_due, 2 * HOUR)
    return await schedule.refresh()


async def _ended(schedules: AsyncScheduler) -> AsyncRunHandle:
    triggered = await (await schedules.create("ended", "note", Cron("0 2 * * *"))).trigger()
    assert triggered.run is not None
    return await triggered.run.cancel()


def _returning_handles(kind: type) -> set[str]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    returned = {name: str(inspect.signature(method).return_annotation) for name, method in methods}
    return {name for name, one in returned.items() if "Handle" in one or "TriggerResult" in one}


def test_any_other_operation_is_awaited_by_run(env: Env) -> None:
    assert await_(run(env.scheduler.recover)).failed == 0


def test_an_awaited_operation_does_not_block_the_loop(env: Env) -> None:
    async def both() -> list[str]:
        order: list[str] = []
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> None:
            asyncio.run_coroutine_threadsafe(_note(order, release), loop).result(10)
            order.append("slow")

        await asyncio.gather(run(slow), release.wait())
        return order

    assert await_(both()) == ["loop", "slow"]


async def _note(order: list[str], release: asyncio.Event) -> None:
    order.append("loop")
    release.set()


def listed(schedule_id: str) -> ScheduleInfo:
    [found] = [info for info in await_(list_schedules()) if info.id == schedule_id]
    assert isinstance(found, ScheduleInfo)
    return found


def test_two_pairs_of_names_that_read_alike_are_two_schedules(waymark: Env) -> None:
    waymark.register("a", lambda: None)
    waymark.register("a:b", lambda: None)
    pairs = [("a", "b:c"), ("a:b", "c")]

    ids = [await_(schedule_workflow(name, schedule_name=given, schedule="@daily")) for name, given in pairs]
    again = [await_(schedule_workflow(name, schedule_name=given, schedule="@hourly")) for name, given in pairs]

    assert ids == again
    assert ids[0] == "a:b:c"
    assert len(set(ids)) == 2
    assert [(listed(one).workflow_name, listed(one).schedule_name) for one in ids] == pairs
    assert await_(pause_schedule("a:b", schedule_name="c"))
    assert [listed(one).status for one in ids] == ["active", "paused"]


def test_a_schedule_keeps_the_id_it_was_registered_under_before_ids_were_told_apart(waymark: Env) -> None:
    waymark.register("a:b", lambda: None)
    waymark.create("a:b:c", Cron("0 * * * *"), "a:b")

    assert await_(schedule_workflow("a:b", schedule_name="c", schedule="@daily")) == "a:b:c"


@pytest.mark.parametrize("name", ["every night", "Größe", "日報", "a/b", "x" * 300])
def test_a_schedule_may_be_named_in_any_letters(waymark: Env, name: str) -> None:
    schedule_id = register(schedule_name=name)

    assert register(schedule_name=name) == schedule_id
    assert listed(schedule_id).schedule_name == name
    assert await_(delete_schedule(DataSync, schedule_name=name))


def test_pause_and_resume_of_a_schedule_that_has_ended_return_false(waymark: Env) -> None:
    register()
    waymark.scheduler.get("data_sync:hourly").update(max_runs=1)
    waymark.run_due(HOUR)
    assert waymark.scheduler.get("data_sync:hourly").status == "done"

    assert await_(pause_schedule(DataSync, schedule_name="hourly")) is False
    assert await_(resume_schedule(DataSync, schedule_name="hourly")) is False
