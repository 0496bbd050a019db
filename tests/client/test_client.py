"""Our own client: the words, results and errors of the in-process API, and retries that do nothing twice."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from rqsched import Cron, Declaration, Every, OverlapPolicy, RetryPolicy, errors
from rqsched.client import Client, ResponseError, Retries, sync
from rqsched.client.http import error_of
from rqsched.http import Limits
from rqsched.http.errors import HttpError, problem_of
from rqsched.http.native import router as native
from rqsched.types import ListFilters, Options
from tests.contract.test_errors import OWN
from tests.support.client import InProcess, asynchronous, client_of
from tests.support.env import HOUR, MINUTE, NOON, SECOND, block
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.web import MakeWeb, Web, one_token


@pytest.fixture
def client(web: Web) -> Client:
    return client_of(web)


def test_a_pause_is_given_an_end(web: Web, client: Client) -> None:
    web.create()
    paused = client.get("report").pause(until=NOON + HOUR, on_resume="once")
    assert (paused.resume_at, paused.resume_mode) == (NOON + HOUR, "once")
    (row,) = web.env.scheduler.list().items
    assert row.resume_at == NOON + HOUR
    client.get("report").resume()
    assert [row.outcome for done in client.bulk.pause(until=NOON + HOUR) for row in done.items] == ["paused"]
    assert client.get("report").resume_at == NOON + HOUR


def test_what_is_skipped_is_read_as_instants(web: Web, client: Client) -> None:
    web.create()
    skipped = client.get("report").skip_next(2, reason="the bank is closed")
    assert skipped.skips == client.get("report").skips == [NOON + MINUTE, NOON + 2 * MINUTE]
    assert skipped.skip_next(0).skips == []


def test_a_schedule_lives_its_life_through_the_client(any_web: Web) -> None:
    client = client_of(any_web)
    made = client.create(
        "report", "note", Every(MINUTE), kwargs={"x": 1}, labels={"a": "b"}, jitter=timedelta(0), overlap="allow_all",
        retry=RetryPolicy(max_retries=5, base=SECOND, then="continue"),
    )  # fmt: skip
    assert made.next_run_at == datetime(2026, 1, 15, 12, 1, tzinfo=UTC)
    assert made.description == any_web.env.scheduler.get("report").describe()
    assert made.pause("later", reason="db").status == "paused"
    assert made.resume("next").status == "active"
    triggered = made.trigger()
    assert (triggered.outcome, triggered.run and triggered.run.kind) == ("triggered", "manual")
    any_web.env.work()
    run = made.run("1").refresh()
    assert (run.status, run.description.attempts[0]["outcome"]) == ("succeeded", "succeeded")
    made.trigger()
    assert [run.status for run in made.runs(limit=1).items] == ["pending"]
    assert made.run("2").cancel("it hangs").status == made.run("2").terminate().status == "cancelled"
    (event,) = [event for event in made.iter_history() if event.event_type == "RunCancelled"]
    assert event.payload["reason"] == "it hangs"
    again = made.run("2").retry("by mistake")
    assert (again.status, again.description.attempt, again.description.asked_attempt) == ("pending", 2, 2)
    with pytest.raises(errors.RunStateError, match="is succeeded"):
        made.run("1").retry()
    assert made.upcoming(2) == [datetime(2026, 1, 15, 12, minute, tzinfo=UTC) for minute in (1, 2)]
    assert made.why().run_uid == any_web.env.scheduler.get(made.schedule_id).why().run_uid
    assert made.why(datetime(2026, 1, 15, 12, 1, tzinfo=UTC)).answer == "fires"
    gone = made.delete(reason="done")
    assert (gone is made, gone.status, gone.next_run_at) == (True, "deleted", None)
    with pytest.raises(errors.ScheduleNotFoundError):
        made.describe()
    assert [event.sequence for event in made.iter_history()] == list(range(1, 9))
    check_invariants(any_web.env.runtime)


def test_client_retries_all_that_failed(any_web: Web) -> None:
    client = client_of(any_web)
    any_web.create(retry={"max_retries": 0})
    any_web.env.failing = True
    any_web.env.run_next(any_web.env.scheduler.get("report"))
    (planned,) = client.runs.retry_failed(timedelta(hours=1), schedule_id="report", dry_run=True)
    assert (planned.schedule_id, planned.outcome) == ("report", "would_retry")
    with pytest.raises(errors.InvalidInputError, match="bound"):
        client.runs.retry_failed(any_web.env.clock.now(), bound=5_000)
    start = any_web.env.clock.now()
    planned_again = client.get("report").backfill(start - MINUTE, start, rerun="failed", dry_run=True)
    assert planned_again.status == "dry_run"
    (done,) = client.runs.retry_failed(any_web.env.clock.now(), reason="repaired")
    assert (done.run_uid, done.outcome, done.reason) == (planned.run_uid, "started", None)
    assert client.runs.retry_failed("1h", workflow="other") == []


def test_a_blocked_run_is_read_with_its_reason(client: Client, web: Web) -> None:
    made = client.create("report", "note", Every(MINUTE), overlap="allow_all")
    run = block(web.env.runtime, present(web.env.scheduler.get("report").trigger().run))
    made.trigger()
    (found,) = made.runs(statuses=("blocked",)).items
    assert (found.uid, found.is_blocked, found.blocked_at) == (run.uid, True, run.blocked_at)
    assert found.blocked_reason == run.blocked_reason
    assert not made.run("2").is_blocked


def test_every_option_arrives_at_the_server(client: Client, web: Web) -> None:
    options: dict[str, Any] = {
        "timezone": "Europe/Berlin", "args": ("a",), "kwargs": {"b": None}, "overlap": OverlapPolicy.BUFFER_ALL,
        "buffer_limit": 2, "missed": "all", "fire_within": timedelta(hours=1), "missed_limit": 9,
        "on_resume": "once", "jitter": timedelta(seconds=1.5), "max_runs": 7, "on_max_runs": "delete",
        "max_successes": 3, "environments": ("prod",), "retention": "30d 500", "fan_out": "never",
        "overlap_until": "dispatched", "targets": "note", "target_timeout": 20, "max_parallel": 8,
        "target_retry": RetryPolicy(2, SECOND, 3.0, MINUTE, SECOND),
        "retry": RetryPolicy(1, SECOND, 3.0, MINUTE, SECOND, "dead", 4, OSError, ["a.B", KeyError]),
        "timeout": 5, "queue": "q", "priority": 2, "labels": {"l": "m"}, "memo": {"m": 1},
        "search_attributes": {"s": [1]}, "description": "d", "owner": "o",
    }  # fmt: skip
    far = client.create("far", "note", Cron("0 2 * * *"), note="n", paused=True, **options)
    web.env.scheduler.create("near", "note", Cron("0 2 * * *"), note="n", paused=True, **options)
    near = web.env.scheduler.get("near").describe()
    differ = {"uid", "schedule_id"}
    assert without(far.description.to_dict(), differ) == without(near.to_dict(), differ)


def without(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def test_update_changes_what_is_given_and_none_is_the_default(client: Client) -> None:
    made = client.create("report", "note", Every("1m"), queue="q", retry=RetryPolicy(max_retries=9))
    assert made.update(queue=None, timeout=3, note="n").description.queue is None
    assert (made.description.timeout, made.description.policies["retry"]["max_retries"]) == (3, 9)
    assert made.update(retry=None).description.policies["retry"]["max_retries"] == 3
    assert made.update(spec=Cron("0 2 * * *"), timezone="Asia/Tokyo").description.timezone == "Asia/Tokyo"


def test_update_with_an_older_version_is_refused(client: Client) -> None:
    made = client.create("report", "note", Every("1m"))
    version = made.description.version
    client.get("report").update(note="theirs")
    with pytest.raises(errors.VersionConflictError):
        made.update(note="mine", if_version=version)
    assert made.update(note="mine", if_version=made.describe().version).description.note == "mine"


def test_upsert_returns_created_unchanged_or_updated(client: Client) -> None:
    outcomes = [client.upsert("report", "note", Every(minutes), note="n")[1] for minutes in ("1m", "1m", "2m")]
    assert outcomes == ["created", "unchanged", "updated"]


def test_lists_are_paged_counted_and_filtered(client: Client, web: Web) -> None:
    for number in range(3):
        client.create(f"s{number}", "note", Every("1m"), labels={"n": str(number)})
        web.env.advance(SECOND)
    assert [found.schedule_id for found in client.list(limit=2).items] == ["s0", "s1"]
    assert [found.schedule_id for found in client.iter(text="s")] == ["s0", "s1", "s2"]
    assert [found.schedule_id for found in client.iter(labels={"n": "1"})] == ["s1"]
    assert client.count() == 3
    assert client.count(status=["paused", "dead"]) == 0
    client.batch_delete(["s0", "s1", "nope"])
    assert client.count() == 1
    assert [found["name"] for found in client.workflows()] == ["note"]


BETWEEN = NOON + 90 * SECOND
FILTERS: dict[str, Any] = {
    "status": "active",
    "outcome": ["succeeded", "failed"],
    "workflow": "note",
    "labels": {"team": "billing"},
    "search_attributes": {"region": "eu", "tier": 1},
    "owner": "ann",
    "managed_by": "sync",
    "text": "CLAR",
    "overdue": True,
    "created_since": BETWEEN,
    "created_until": BETWEEN,
    "next_since": NOON + HOUR + SECOND,
    "next_until": NOON + HOUR + SECOND,
    "query": 'WorkflowType = "note" AND tier = 1',
}
"""One value for each filter, which lets one or two of the schedules below through."""


def test_each_filter_of_the_scheduler_means_the_same_over_http(any_web: Web) -> None:
    env, client = any_web.env, client_of(any_web)
    attributes = {"region": "eu", "tier": 1, 'a"b:c': [None]}
    options: Options = {"labels": {"team": "billing"}, "search_attributes": attributes, "owner": "ann"}
    client.sync([Declaration("declared", "note", Every("1h"), options)])
    client.get("declared").trigger()
    env.work()
    env.advance(MINUTE)
    env.register("other", lambda: None)
    client.create("silent", "other", Every("1h"), expect_success_within=SECOND, search_attributes={"tier": "1"})
    env.advance(MINUTE)
    client.create("resting", "other", Every("1h"), paused=True)
    env.recover()

    assert FILTERS.keys() == ListFilters.__annotations__.keys()
    for name, value in FILTERS.items():
        asked: Any = {name: value}
        near, far = ([one.schedule_id for one in which.list(**asked).items] for which in (env.scheduler, client))
        assert 0 < len(near) < 3, name
        assert (far, client.count(**asked)) == (near, len(near)), name
        theirs, ours = ([*which.bulk.pause(dry_run=True, **asked)] for which in (client, env.scheduler))
        assert [one.items for one in theirs] == [one.items for one in ours], name
    assert [one.schedule_id for one in client.list(search_attributes={'a"b:c': [None]}).items] == ["declared"]


REFUSED_FILTERS: dict[str, Any] = {
    "a query that says nothing": {"query": "region"},
    "a status in a query": {"query": 'Status = "asleep"'},
    "a number that JSON lacks": {"search_attributes": {"a": float("nan")}},
    "a naive instant": {"next_since": datetime(2026, 1, 15)},  # noqa: DTZ001
    "more than a thousand equalities": {"search_attributes": {str(n): "x" for n in range(1_100)}},
}


@pytest.mark.parametrize("filters", REFUSED_FILTERS.values(), ids=REFUSED_FILTERS.keys())
def test_what_cannot_be_asked_is_refused_in_process_and_over_http(any_web: Web, filters: Any) -> None:
    for which in (any_web.env.scheduler, client_of(any_web)):
        for ask in (which.list, which.count, lambda which=which, **filters: next(which.bulk.pause(**filters))):
            with pytest.raises(errors.InvalidInputError) as refused:
                ask(**filters)
            assert refused.value.field == next(iter(filters))


def test_a_backfill_returns_the_progress_that_the_scheduler_returns(client: Client, web: Web) -> None:
    made = client.create("report", "note", Cron("0 * * * *"), overlap="allow_all")
    start, end = (datetime(2026, 1, 15, hour, tzinfo=UTC) for hour in (8, 11))
    planned = made.backfill(start, end, dry_run=True)
    assert (planned.uid, planned.started, planned.is_done) == (None, 3, True)
    done = made.backfill(start, end)
    assert [(row.occurrence_at.hour, row.outcome) for row in done.rows] == [(hour, "started") for hour in (8, 9, 10)]
    assert (
        client.backfills.get(done.uid or "")
        == web.env.scheduler.backfills.get(done.uid or "")
        == replace(done, rows=[])
    )
    again = made.backfill(start, end, dry_run=True)
    assert again == web.env.scheduler.get("report").backfill(start, end, dry_run=True)


RAISED: list[tuple[Callable[[Client], Any], type[Exception], dict[str, str]]] = [
    (lambda c: c.get("nope"), errors.ScheduleNotFoundError, {}),
    (lambda c: c.get("report").run("9"), errors.RunNotFoundError, {}),
    (lambda c: c.backfills.get("nope"), errors.BackfillNotFoundError, {}),
    (lambda c: c.create("report", "note", Every("1m")), errors.ScheduleExistsError, {}),
    (lambda c: c.create("x", "nope", Every("1m")), errors.UnknownWorkflowError, {"field": "workflow"}),
    (lambda c: c.create("x", "note", "61 * * * *"), errors.InvalidCronError, {"field": "cron"}),
    (lambda c: c.create("x", "note", Every("1m"), max_runs=0), errors.InvalidInputError, {"field": "max_runs"}),
    (lambda c: c.create("x", "note", Every("1m"), overlap="x"), errors.InvalidPolicyError, {"field": "overlap"}),
    (lambda c: c.get("report").resume(), errors.ScheduleStateError, {}),
    (lambda c: c.list(limit=0), errors.InvalidInputError, {"field": "limit"}),
    (lambda c: c.create("y", "note", Every("1m"), idempotency_key="k"), errors.IdempotencyConflictError, {}),
]


@pytest.mark.parametrize(("act", "kind", "has"), RAISED, ids=[row[1].__name__ for row in RAISED])
def test_errors_are_those_of_the_in_process_api(
    client: Client, act: Callable[[Client], Any], kind: type[Exception], has: dict[str, str]
) -> None:
    client.create("report", "note", Every("1m"), idempotency_key="k")
    with pytest.raises(errors.RqschedError) as caught:
        act(client)
    assert type(caught.value) is kind
    assert str(caught.value)
    assert {name: getattr(caught.value, name) for name in has} == has


def samples() -> list[errors.RqschedError]:
    """Return errors of every class that a server may send: those that write their message, and the others."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.RqschedError)]
    plain = [kind for kind in kinds if kind not in {type(one) for one in OWN} and kind is not errors.RqschedError]
    of_fields: list[errors.RqschedError] = [
        kind("the.field", "correct it") for kind in plain if issubclass(kind, errors.InvalidInputError)
    ]
    others = [kind("correct it") for kind in plain if not issubclass(kind, errors.InvalidInputError)]
    return [*OWN, *of_fields, *others]


@pytest.mark.parametrize("error", samples(), ids=lambda error: type(error).__name__)
def test_a_client_raises_the_error_of_the_server_with_its_words_and_attributes(error: errors.RqschedError) -> None:
    sent = problem_of(error)
    response = native.SURFACE.render(sent, "request-1")
    raised = error_of(httpx.Response(response.status_code, content=bytes(response.body)))
    assert str(raised) == sent.detail
    assert raised.code == sent.code
    known = {name: value for name, value in vars(raised).items() if name not in {"problem", "retry_after", "code"}}
    if isinstance(error, HttpError) or sent.status == 500:
        assert type(raised) is (errors.BackendUnavailableError if sent.status == 503 else ResponseError)
    else:
        assert type(raised) is type(error)
        assert known == ({} if sent.status == 503 else vars(error))
    if isinstance(error, errors.DatabaseLimitError):
        assert raised.reason == ""  # type: ignore[attr-defined]


def test_a_calendar_that_is_not_known_is_told_in_the_server_s_words(client: Client, web: Web) -> None:
    with pytest.raises(errors.UnknownCalendarError) as here:
        web.env.create("report", exclude=["holidayz"])
    with pytest.raises(errors.UnknownCalendarError) as there:
        client.create("report", "note", Every("1h"), exclude=["holidayz"])
    assert str(there.value) == str(here.value)
    assert (there.value.calendar, there.value.namespace, there.value.field) == ("holidayz", "default", "exclude")
    with pytest.raises(errors.UnknownWorkflowError) as workflow:
        client.create("report", "nobody's", Every("1h"))
    assert workflow.value.workflow == "nobody's"


def test_every_error_of_the_tree_can_be_rebuilt() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.RqschedError)]
    for kind in kinds:
        rebuilt = error_of(httpx.Response(409, json={"code": kind.code, "detail": "what to do"}))
        if kind is not errors.RqschedError:
            assert isinstance(rebuilt, kind), kind
        assert "what to do" in str(rebuilt)


def test_an_error_that_only_http_has_is_a_response_error(make_web: MakeWeb) -> None:
    web = make_web(tokens=one_token("0123456789abcdef", "read"))
    with pytest.raises(ResponseError) as caught:
        client_of(web).list()
    assert (caught.value.http_status, caught.value.code) == (401, "unauthorized")
    with pytest.raises(ResponseError) as caught:
        client_of(web, token="0123456789abcdef").create("x", "note", Every("1m"))
    assert (caught.value.http_status, caught.value.code) == (403, "forbidden")


def test_a_client_may_be_bound_to_a_namespace(web: Web) -> None:
    client_of(web, namespace="mine").create("x", "note", Every("1m"))
    assert client_of(web).count() == 0
    assert client_of(web, namespace="mine").count() == 1


REPEATED: list[tuple[str, Callable[[Client], Any]]] = [
    ("create", lambda c: c.create("x", "note", Every("1m"))),
    ("upsert", lambda c: c.upsert("x", "note", Every("1m"))),
    ("get", lambda c: c.get("report")),
    ("list", lambda c: c.list()),
    ("update", lambda c: c.get("report").update(note="n")),
    ("trigger", lambda c: c.handle("report").trigger()),
    ("delete", lambda c: c.handle("report").delete()),
    ("batch delete", lambda c: c.batch_delete(["report"])),
]


@pytest.mark.parametrize("act", [act for _, act in REPEATED], ids=[name for name, _ in REPEATED])
def test_a_repeatable_request_is_sent_again_after_a_lost_response_without_a_second_effect(
    web: Web, act: Callable[[Client], Any]
) -> None:
    web.create(overlap="allow_all")
    transport = InProcess(web, lost=2)
    act(client_of(web, transport))
    assert len(transport.sent) >= 3
    assert len(list(web.env.scheduler.iter(status=["active", "deleted"]))) <= 2
    assert len(web.env.scheduler.newest("report").runs().items) <= 1


ONCE: list[tuple[str, Callable[[sync.ScheduleHandle], Any]]] = [
    ("pause", lambda handle: handle.pause()),
    ("conditional update", lambda handle: handle.update(note="n", if_version=1)),
    ("backfill", lambda handle: handle.backfill(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))),
]


@pytest.mark.parametrize("act", [act for _, act in ONCE], ids=[name for name, _ in ONCE])
def test_a_request_that_is_not_repeatable_is_sent_once(web: Web, act: Callable[[sync.ScheduleHandle], Any]) -> None:
    web.create()
    transport = InProcess(web)
    handle = client_of(web, transport).get("report")
    transport.lost = 99
    transport.sent.clear()
    with pytest.raises(errors.BackendUnavailableError):
        act(handle)
    assert len(transport.sent) == 1


def test_a_request_that_never_arrived_is_sent_again(web: Web) -> None:
    web.create()
    assert client_of(web, InProcess(web, refused=2)).handle("report").pause().status == "paused"


def test_a_server_that_refuses_connections_raises_backend_unavailable(web: Web) -> None:
    transport = InProcess(web, refused=99)
    with pytest.raises(errors.BackendUnavailableError, match="does not answer"):
        client_of(web, transport, retries=Retries(most=2, first=0.0)).list()
    assert len(transport.sent) == 3


def test_a_rate_limited_request_is_sent_again_later(make_web: MakeWeb) -> None:
    web = make_web(app={"limits": Limits(rate=1000, burst=1)})
    client = client_of(web, retries=Retries(most=5, first=0.0, longest=0.01))
    assert [client.count() for _ in range(3)] == [0, 0, 0]


def test_runs_of_all_schedules_are_listed_with_their_ids_as_the_scheduler_lists_them(any_web: Web) -> None:
    client, env = client_of(any_web), any_web.env
    env.fail_next(env.create("first", retry=RetryPolicy(max_retries=0)))
    since = env.advance(SECOND)
    env.run_next(env.create("second"))

    async def read() -> list[str]:
        async with asynchronous(any_web) as asynchronous_client:
            page = await asynchronous_client.runs.list(status=["failed", "succeeded"])
            (_, run), *_ = page.items
            return [schedule_id for schedule_id, _ in page.items] + [(await run.refresh()).status]

    for asked in (client, env.scheduler):
        found = [(schedule_id, run.status) for schedule_id, run in asked.runs.list().items]
        assert found == [("second", "succeeded"), ("first", "failed")]
        assert [name for name, _ in asked.runs.list(status="failed").items] == ["first"]
        assert [name for name, _ in asked.runs.list(error="as the test", workflow="note").items] == ["first"]
        assert [name for name, _ in asked.runs.list(since=since, sort="created").items] == ["second"]
        page = asked.runs.list(limit=1, until=env.clock.now() + MINUTE)
        assert [name for name, _ in asked.runs.list(limit=1, cursor=page.next_cursor).items] == ["first"]
        for wrong in ({"status": "odd"}, {"since": datetime(2026, 1, 15)}, {"sort": "odd"}, {"limit": 0}):  # noqa: DTZ001
            with pytest.raises(errors.InvalidInputError):
                asked.runs.list(**wrong)
    ((_, run),) = client.runs.list(error="as the test").items
    assert run.retry("the mail server is back").status == "pending"
    assert asyncio.run(read()) == ["second", "succeeded"]


def test_the_asynchronous_client_does_the_same(web: Web) -> None:
    async def live() -> None:
        async with asynchronous(web) as client:
            made = await client.create("report", "note", Every("1m"))
            assert (await made.pause()).status == "paused"
            assert (await (await made.resume()).trigger()).outcome == "triggered"
            assert (await (await made.run("1")).cancel()).status == "cancelled"
            assert [run.status for run in (await made.runs()).items] == ["cancelled"]
            assert [found.schedule_id async for found in client.iter()] == ["report"]
            assert [event.sequence async for event in made.iter_history()] == [1, 2, 3, 4, 5]
            with pytest.raises(errors.ScheduleNotFoundError):
                await client.get("nope")
            with pytest.raises(LookupError):
                _ = client.handle("report").status

    asyncio.run(live())
