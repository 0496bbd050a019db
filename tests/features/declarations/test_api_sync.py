"""Declared sets: sync and its preview."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from threading import Thread, get_ident
from typing import Any, Unpack

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import InvalidInputError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.decide.options import Options
from tests.support.env import SECOND, Env, last, link_id


def declared(schedule_id: str, spec: Any = "@hourly", **options: Unpack[Options]) -> Declaration:
    return Declaration(schedule_id, "note", spec, options)


def test_sync_creates_a_declared_set_and_prunes_what_a_sync_made(any_env: Env) -> None:
    scheduler = any_env.scheduler
    any_env.create("by-hand")
    any_env.advance(SECOND)
    scheduler.sync([declared("kept"), declared("changed"), declared("gone")])
    any_env.advance(SECOND)
    told: list[tuple[str, str]] = []

    wanted = [declared("kept"), declared("changed", queue="high"), declared("new")]
    assert scheduler.sync(wanted, delete_removed=True, dry_run=True) == (
        done := scheduler.sync(wanted, delete_removed=True, progress=lambda *outcome: told.append(outcome))
    )

    assert (done.created, done.updated, done.unchanged, done.removed) == (["new"], ["changed"], ["kept"], ["gone"])
    assert told == [("kept", "unchanged"), ("changed", "updated"), ("new", "created")]
    assert {found.schedule_id for found in scheduler.iter()} == {"by-hand", "kept", "changed", "new"}
    assert last(scheduler.newest("gone"), "Deleted")["reason"] == "removed by sync"


def test_a_set_of_several_batches_is_created_in_its_order(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    ids = ["e", "a", "d", "b", "c"]
    assert any_env.scheduler.sync([declared(one) for one in ids]).created == ids
    changed = {"a", "c"}
    done = any_env.scheduler.sync([declared(one, queue="high" if one in changed else None) for one in ids])
    assert (done.updated, done.unchanged) == (["a", "c"], ["e", "d", "b"])
    assert all(any_env.scheduler.get(one).history()[-1].event_type.endswith("Updated") for one in changed)


class DiskFailure(Exception):
    """The failure of the second batch."""


def test_what_was_written_before_a_batch_that_fails_is_reported_told_and_armed(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_second(_c: object, _u: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO rqsched_schedules"):
            inserts.append(statement)
            if len(inserts) == 2:
                raise DiskFailure

    inserts: list[str] = []
    reported: list[str] = []
    created: list[str] = []
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    any_env.runtime.subscribers.append(lambda change, event: created.append(change.after.schedule_id))
    sa.event.listen(any_env.runtime.database.engine, "before_cursor_execute", fail_second)

    with pytest.raises(DiskFailure):
        any_env.scheduler.sync([declared(one) for one in "abcde"], progress=lambda one, _: reported.append(one))

    assert reported == created == ["a", "b"]
    assert [found.schedule_id for found in any_env.scheduler.iter()] == ["a", "b"]
    assert set(any_env.armed()) == {link_id(any_env.scheduler.get(one)) for one in "ab"}


def test_progress_that_raises_ends_a_sync_after_its_batch_which_is_told_and_armed(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    created: list[str] = []
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    any_env.runtime.subscribers.append(lambda change, event: created.append(change.after.schedule_id))

    with pytest.raises(KeyboardInterrupt):
        any_env.scheduler.sync([declared(one) for one in "abcde"], progress=stop)

    assert created == [found.schedule_id for found in any_env.scheduler.iter()] == ["a", "b"]
    assert set(any_env.armed()) == {link_id(any_env.scheduler.get(one)) for one in "ab"}


def test_sync_whose_wait_for_redis_is_interrupted_tells_of_what_it_wrote(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_once(future: Future[object], timeout: float | None = None) -> object:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return result(future, timeout)

    interrupted: list[bool] = []
    created: list[str] = []
    result = Future.result
    monkeypatch.setattr(Future, "result", interrupt_once)
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    any_env.runtime.subscribers.append(lambda change, event: created.append(change.after.schedule_id))

    with pytest.raises(KeyboardInterrupt):
        any_env.scheduler.sync([declared(one) for one in "abcde"])

    assert created == sorted(found.schedule_id for found in any_env.scheduler.iter()) == ["a", "b", "c", "d"]
    assert len(any_env.armed()) == 4


def test_sync_follows_by_itself_where_no_thread_can_be_started(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    assert env.scheduler.sync([declared(one) for one in "abc"]).created == ["a", "b", "c"]
    assert len(env.armed()) == 3


def test_progress_and_subscribers_of_a_sync_are_called_in_its_thread(
    any_env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr("rqsched.features.declarations.api.SYNC_BATCH", 2)
    any_env.runtime.subscribers.append(lambda *_: threads.append(get_ident()))
    any_env.scheduler.sync([declared(one) for one in "abcde"], progress=lambda *_: threads.append(get_ident()))
    assert threads == [get_ident()] * 10


def test_a_set_is_listed_in_the_order_it_was_declared_in(any_env: Env) -> None:
    ids = [f"{number * 7 % 20:02}" for number in range(20)]
    any_env.scheduler.sync([declared(one) for one in ids])
    assert [found.schedule_id for found in any_env.scheduler.iter()] == ids


def test_declarations_that_are_alike_are_told_from_those_that_only_compare_as_equal(any_env: Env) -> None:
    first, again = declared("a", priority=1), declared("b", priority=1)
    with pytest.raises(InvalidInputError, match="priority") as refused:
        any_env.scheduler.sync([first, again, declared("c", priority=True)])
    assert refused.value.__notes__ == ["in the declaration of 'c'"]
    assert list(any_env.scheduler.iter()) == []


def test_schedules_created_alike_differ_in_their_identity_only(any_env: Env) -> None:
    spec = Every("1h")  # it counts from the registration
    any_env.scheduler.sync([declared(one, spec, overlap="allow_all", timezone="Europe/Berlin") for one in "abc"])
    one, *others = (any_env.scheduler.get(name) for name in "abc")
    for other in others:
        assert replace(other.state, uid=one.uid, schedule_id="a", operation=one.state.operation) == one.state
        assert [event.payload for event in other.history()] == [event.payload for event in one.history()]
        assert other.state.operation == other.uid


ARGUMENTS: dict[str, Any] = {
    "none": {},
    "args": {"args": ["eu", 1]},
    "tuple": {"args": ("eu", 1.5)},
    "kwargs": {"kwargs": {"b": [None], "a": True}},
    "both": {"args": [{"deep": {}}], "kwargs": {"region": "ü"}},
    "empty": {"args": [], "kwargs": {}},
    "null": {"args": None, "kwargs": None},
}


@pytest.mark.parametrize("paused", [False, True], ids=["active", "paused"])
@pytest.mark.parametrize("jitter", ["0s", "10m"], ids=["shared", "jittered"])
@pytest.mark.parametrize("order", [1, -1], ids=["none first", "none last"])
def test_a_sync_writes_the_rows_and_events_that_create_writes(
    any_env: Env, paused: bool, jitter: str, order: int
) -> None:
    """Equal declarations are decided once, even with different arguments."""
    scheduler, spec, alike = any_env.scheduler, Every("1h"), Options(jitter=jitter, queue="high", timeout=5)
    sets = {name: Options(**{**alike, **own}) for name, own in [*ARGUMENTS.items()][::order]}
    said: dict[str, Any] = {"note": "why", "paused": paused}
    created = {name: scheduler.create(name, "note", spec, **said, **given) for name, given in sets.items()}

    declarations = [Declaration(name, "note", spec, given, **said) for name, given in sets.items()]
    scheduler.sync(declarations, namespace="other")

    for name, one in created.items():
        synced = scheduler.get(name, namespace="other")
        assert _declared_in(synced) == _declared_in(one)
        assert _told(synced) == _told(one)


def _declared_in(schedule: ScheduleHandle) -> Schedule:
    """The row, but for what tells incarnations apart: the delay of jitter is computed from the uid."""
    state = schedule.state
    due_at = state.next_run_at if state.definition.jitter else state.due_at
    definition = replace(state.definition, managed_by=None)
    return replace(state, uid="", operation="", namespace="", due_at=due_at, definition=definition)


def _told(schedule: ScheduleHandle) -> list[tuple[int, str, dict[str, Any]]]:
    """The history, but for the time that jitter moves."""
    moved = {"next_fire_at": None} if schedule.state.definition.jitter else {}
    return [(one.sequence, one.event_type, one.payload | moved) for one in schedule.history()]


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        ({"args": "text"}, "must be a list"),
        ({"args": [object()]}, "JSON-native"),
        ({"args": ["x" * 300_000]}, "limit"),
        ({"kwargs": ["a"]}, "must be a mapping"),
        ({"kwargs": {"a": float("nan")}}, "holds nan"),
        ({"kwargs": {"a": "\x00"}}, "NUL"),
        ({"args": ["eu"], "nonsense": 1}, "not an option"),
    ],
    ids=["a text", "an object", "too large", "a list", "not a number", "a NUL", "an unknown option"],
)
def test_arguments_of_each_declaration_are_checked(any_env: Env, own: Any, refused: str) -> None:
    declarations = [declared("a", args=["eu"]), Declaration("b", "note", "@hourly", own)]

    with pytest.raises(InvalidInputError, match=refused) as error:
        any_env.scheduler.sync(declarations)

    assert error.value.__notes__ == ["in the declaration of 'b'"]
    assert list(any_env.scheduler.iter()) == []


def test_each_of_a_jittered_set_has_its_own_delay(any_env: Env) -> None:
    any_env.scheduler.sync([declared(name, jitter="10m") for name in "abcd"])
    assert len({found.state.due_at for found in any_env.scheduler.iter()}) > 1


def test_sync_without_prune_removes_nothing(any_env: Env) -> None:
    any_env.scheduler.sync([declared("one")])
    assert any_env.scheduler.sync([]).removed == []
    assert any_env.scheduler.sync([], delete_removed=True).removed == ["one"]


def test_a_sync_owns_only_what_it_made(any_env: Env) -> None:
    any_env.create("by-hand", Cron("@hourly"))
    any_env.scheduler.sync([declared("by-hand", queue="high"), declared("synced")])
    any_env.scheduler.upsert("synced", "note", "@hourly", queue="low")

    assert any_env.scheduler.sync([], delete_removed=True).removed == ["synced"]
    assert any_env.scheduler.get("by-hand").describe().queue == "high"


def test_a_sync_of_another_namespace_prunes_nothing_here(any_env: Env) -> None:
    any_env.scheduler.sync([declared("one")])
    assert any_env.scheduler.sync([], delete_removed=True, namespace="other").removed == []


def test_sync_never_resumes_what_an_operator_paused(any_env: Env) -> None:
    any_env.scheduler.sync([declared("one")])
    any_env.scheduler.get("one").pause()
    assert any_env.scheduler.sync([declared("one")]).unchanged == ["one"]
    assert any_env.scheduler.get("one").status == "paused"


BAD_SETS = {
    "a bad option": [declared("one"), declared("two", queue="no queue")],
    "a bad id": [declared("one"), declared("no id")],
    "an unknown workflow": [declared("one"), Declaration("two", "nobody", "@hourly")],
    "an id twice": [declared("one"), declared("one")],
    "a note too long": [declared("one"), Declaration("two", "note", "@hourly", note="x" * 5000)],
}


@pytest.mark.parametrize("wanted", BAD_SETS.values(), ids=BAD_SETS.keys())
def test_a_sync_with_an_invalid_declaration_writes_nothing(env: Env, wanted: list[Declaration]) -> None:
    for dry_run in (False, True):
        with pytest.raises(InvalidInputError):
            env.scheduler.sync(wanted, dry_run=dry_run)
    assert env.scheduler.list().items == []


STATES: dict[str, Options] = {"active": {}, "paused": {}, "done": {"max_runs": 1}}
CHANGES: dict[str, Options] = {"the same": {}, "another queue": {"queue": "high"}, "more runs": {"max_runs": 5}}


@pytest.mark.parametrize("paused", [None, True, False])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("state", STATES)
def test_a_preview_says_what_a_sync_does(any_env: Env, state: str, change: str, paused: bool | None) -> None:
    scheduler = any_env.scheduler
    scheduler.sync([declared("a", **STATES[state]), declared("b")])
    handle = scheduler.get("a")
    any_env.run_due(timedelta(hours=1))
    if state == "paused":
        handle.pause()
    assert handle.refresh().status == state
    before = any_env.state(handle)
    options: Options = {**STATES[state], **CHANGES[change]}
    wanted = [replace(declared("a", **options), paused=paused), declared("b")]

    planned = scheduler.sync(wanted, dry_run=True)

    assert any_env.state(handle) == before
    assert planned == scheduler.sync(wanted)
