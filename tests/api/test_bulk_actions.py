"""Long bulk operations change exactly the counted set. They can be stopped and continued, and never do one twice."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from rqsched.api import bulk_actions
from rqsched.api.bulk import BATCH, MOST, Bulk, fix
from rqsched.api.bulk_actions import KEPT, MOST_KEPT, SILENT, BulkAction
from rqsched.core.audit import CommandContext
from rqsched.errors import ConflictError, NotFoundError
from rqsched.store import metadata, schedule_queries
from rqsched.store.schedule_queries import Filters
from tests.support.env import HOUR, SECOND, Env, events
from tests.support.plans import plan
from tests.support.processes import wait_until

pytestmark = pytest.mark.every_database
ADA = CommandContext(principal="ada", source="dashboard", reason="the bank is away")
BOB = CommandContext(principal="bob", source="dashboard")
BILLING = Filters(namespace="default", statuses=("active",), labels={"team": "billing"})


def create(env: Env, count: int, team: str = "billing") -> list[str]:
    ids = [f"{team}-{number:03}" for number in range(count)]
    for schedule_id in ids:
        env.scheduler.create(schedule_id, "note", "1h", labels={"team": team})
    return ids


def count(env: Env, operation: str = "pause") -> BulkAction:
    runtime = env.runtime
    return bulk_actions.count(runtime, operation, "default", fix(runtime, BILLING, MOST), {"label": "team:billing"})


def find(env: Env, uid: str) -> BulkAction:
    return bulk_actions.find(env.runtime, "default", uid)


def begin(env: Env, known: BulkAction, context: CommandContext = ADA) -> BulkAction:
    return bulk_actions.begin(env.runtime, known, BILLING, Bulk(known.operation, context=context))


def carry_out(env: Env, known: BulkAction, context: CommandContext = ADA) -> BulkAction:
    """Begin or continue, and wait until it has ended or was stopped."""
    begin(env, known, context)
    wait_until(lambda: find(env, known.uid).status != "running", what="the end of the bulk action")
    return find(env, known.uid)


def unfinished(env: Env) -> list[BulkAction]:
    return env.runtime.database.read(lambda c: bulk_actions.unfinished(c, "default", env.clock.now()))


def stop_at_first_change(env: Env, known: BulkAction) -> None:
    """Stop the action right after its first change."""

    def told(*_: object) -> None:
        env.runtime.subscribers.remove(told)
        bulk_actions.stop(env.runtime, known, "bob")

    env.runtime.subscribers.append(told)


def run_counts(env: Env) -> list[int]:
    return [one.run_count for one in env.scheduler.iter()]


def test_what_was_counted_is_what_is_done(any_env: Env) -> None:
    ids = create(any_env, 4)
    other = any_env.scheduler.create("other", "note", "1h", labels={"team": "sales"})
    counted = count(any_env)
    assert (counted.status, counted.total) == ("counted", 4)

    other.update(labels=BILLING.labels)
    any_env.scheduler.create("later", "note", "1h", labels=BILLING.labels)
    any_env.scheduler.get(ids[0]).update(labels={"team": "sales"})
    any_env.scheduler.get(ids[1]).pause()
    any_env.scheduler.get(ids[2]).delete()
    any_env.scheduler.create(ids[2], "note", "1h", labels=BILLING.labels)
    done = carry_out(any_env, counted)

    assert (done.status, done.counts) == ("done", {"skipped": 3, "paused": 1})
    reason = "it does not match any more"
    assert sorted(done.skipped) == [[schedule_id, reason] for schedule_id in ids[:3]]
    paused = {one.schedule_id for one in any_env.scheduler.iter(status="paused")}
    assert paused == {ids[1], ids[3]}
    payload = events(any_env.scheduler.get(ids[3]), "SchedulePaused")[0].payload
    assert (payload["reason"], payload["command_context"]["principal"]) == ("the bank is away", "ada")


def test_stopped_in_the_middle_it_is_continued_by_somebody_else_and_nothing_runs_twice(any_env: Env) -> None:
    create(any_env, 2 * BATCH + 3)
    counted = count(any_env, "trigger")
    stop_at_first_change(any_env, counted)
    stopped = carry_out(any_env, counted)
    assert (stopped.status, stopped.position, stopped.counts) == ("stopped", BATCH, {"triggered": BATCH})
    assert stopped.stopped_by == "bob"
    assert sum(run_counts(any_env)) == BATCH

    done = carry_out(any_env, counted, BOB)

    assert (done.status, done.counts) == ("done", {"triggered": 2 * BATCH + 3})
    assert run_counts(any_env) == [1] * (2 * BATCH + 3)
    assert (done.context["principal"], done.context["reason"]) == ("bob", "the bank is away")
    assert begin(any_env, counted) == done  # finished changes stay
    assert metadata_of(any_env, "bulkset:") == {}


def metadata_of(env: Env, prefix: str) -> dict[str, str]:
    return env.runtime.database.read(lambda connection: metadata.values_under(connection, prefix))


def test_process_that_dies_leaves_it_interrupted_and_the_batch_without_a_record_is_not_done_twice(any_env: Env) -> None:
    create(any_env, BATCH + 2)
    counted = count(any_env, "trigger")
    stop_at_first_change(any_env, counted)
    stopped = carry_out(any_env, counted)
    dead = replace(stopped, status="running", worker="gone", position=0, counts={})
    any_env.runtime.database.transact(
        lambda connection: metadata.set_value(connection, f"bulk:{dead.uid}", dead.dumps())
    )
    assert begin(any_env, dead) == dead  # perhaps it still works

    any_env.clock.advance(SILENT + SECOND)

    assert find(any_env, dead.uid).is_interrupted(any_env.clock.now())
    assert [one.uid for one in unfinished(any_env)] == [dead.uid]
    assert carry_out(any_env, dead).counts == {"triggered": BATCH + 2}
    assert run_counts(any_env) == [1] * (BATCH + 2)
    assert unfinished(any_env) == []


def test_process_that_was_replaced_ends_with_its_batch_and_writes_no_progress(any_env: Env) -> None:
    create(any_env, 2 * BATCH)
    counted = count(any_env)
    taken = list[BulkAction]()

    def told(*_: object) -> None:  # the process hangs in its first batch, and somebody continues in another one
        any_env.runtime.subscribers.remove(told)
        held = find(any_env, counted.uid)
        taken.append(replace(held, worker="another", begun_from=0))
        any_env.runtime.database.transact(lambda c: metadata.set_value(c, f"bulk:{held.uid}", taken[0].dumps()))

    any_env.runtime.subscribers.append(told)
    begin(any_env, counted)
    wait_until(lambda: f"bulk-{counted.uid}" not in {one.name for one in threading.enumerate()}, what="its end")
    assert find(any_env, counted.uid) == taken[0]
    assert len([*any_env.scheduler.iter(status="paused")]) == BATCH


def test_two_who_begin_at_once_begin_it_once(any_env: Env) -> None:
    create(any_env, BATCH + 1)
    counted = count(any_env, "trigger")
    with ThreadPoolExecutor(2) as both:
        begun = list(both.map(partial(begin, any_env, counted), (ADA, BOB)))
    assert len({one.worker for one in begun}) == 1
    wait_until(lambda: find(any_env, counted.uid).status == "done", what="its end")
    assert run_counts(any_env) == [1] * (BATCH + 1)


def test_schedule_that_refuses_is_skipped_with_its_reason_and_the_others_are_done(any_env: Env) -> None:
    ids = create(any_env, 3)
    any_env.scheduler.get(ids[1]).trigger()
    done = carry_out(any_env, count(any_env, "trigger"))
    assert done.counts == {"triggered": 2, "skipped": 1}
    ((skipped, reason),) = done.skipped
    assert skipped == ids[1]
    assert reason


def test_process_carries_out_a_few_and_refuses_more(any_env: Env) -> None:
    create(any_env, 1)
    counted = count(any_env)
    with ExitStack() as stack:
        for _ in range(bulk_actions.AT_ONCE):
            stack.enter_context(bulk_actions.SLOTS)
        with pytest.raises(ConflictError, match="has ended"):
            begin(any_env, counted)
    assert carry_out(any_env, counted).status == "done"


def test_it_is_known_in_its_namespace_and_for_hours(any_env: Env) -> None:
    create(any_env, 3)
    old = carry_out(any_env, count(any_env, "trigger"))
    for namespace, uid in (("another", old.uid), ("default", "no-uid"), ("default", "0" * 26)):
        with pytest.raises(NotFoundError):
            bulk_actions.find(any_env.runtime, namespace, uid)
    abandoned = count(any_env)
    any_env.clock.advance(KEPT + SECOND)
    for uid in (old.uid, abandoned.uid):
        with pytest.raises(NotFoundError, match="new count"):
            find(any_env, uid)
    with pytest.raises(NotFoundError):
        begin(any_env, abandoned)
    fresh = count(any_env)
    assert sorted(metadata_of(any_env, "bulk")) == [f"bulk:{fresh.uid}", f"bulkset:{fresh.uid}"]


def test_row_of_a_newer_release_is_read_without_what_it_added(any_env: Env) -> None:
    create(any_env, 1)
    counted = count(any_env)
    newer = json.dumps({**json.loads(counted.dumps()), "since_then": 1})
    any_env.runtime.database.transact(lambda c: metadata.set_value(c, f"bulk:{counted.uid}", newer))
    assert find(any_env, counted.uid) == counted


@pytest.mark.parametrize("status", MOST_KEPT)
def test_those_that_do_not_go_on_are_bounded(any_env: Env, status: str) -> None:
    create(any_env, 1)
    most, found = MOST_KEPT[status], list[BulkAction]()
    for _ in range(most + 2):
        found.append(count(any_env))
        moved = replace(found[-1], status="running" if status == "stopped" else status)  # whose process is silent
        any_env.runtime.database.transact(partial(metadata.set_value, name=f"bulk:{moved.uid}", value=moved.dumps()))
        any_env.clock.advance(SILENT + SECOND)
    newest = count(any_env)
    kept = [*found, newest][-most:] if status == "counted" else [*found[-most:], newest]
    assert sorted(metadata_of(any_env, "bulkset:")) == [f"bulkset:{one.uid}" for one in kept]
    assert sorted(metadata_of(any_env, "bulk:")) == [f"bulk:{one.uid}" for one in kept]


def test_a_stop_is_kept_with_who_asked_for_it_and_how_far_it_was(any_env: Env) -> None:
    create(any_env, BATCH + 1)
    counted = count(any_env)
    stop_at_first_change(any_env, counted)
    carry_out(any_env, counted)
    bulk_actions.stop(any_env.runtime, counted, "eve")  # it stands already
    any_env.clock.advance(KEPT + SECOND)
    count(any_env)
    (told,) = any_env.runtime.database.read(partial(bulk_actions.stops, namespace="default"))
    assert (told.by, told.begun_by, told.operation, told.total, told.position) == ("bob", "ada", "pause", BATCH + 1, 0)
    assert any_env.runtime.database.read(partial(bulk_actions.stops, namespace="another")) == []


def test_stops_are_bounded(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "MOST_STOPS", 3)
    create(any_env, 1)
    for number in range(5):
        running = replace(count(any_env), status="running")
        any_env.runtime.database.transact(
            partial(metadata.set_value, name=f"bulk:{running.uid}", value=running.dumps())
        )
        bulk_actions.stop(any_env.runtime, running, f"person {number}")
    found = any_env.runtime.database.read(partial(bulk_actions.stops, namespace="default"))
    assert [one.by for one in found] == ["person 4", "person 3", "person 2"]


@pytest.mark.parametrize(
    ("operation", "before", "outcome"),
    [("pause", "active", "paused"), ("resume", "paused", "resumed"), ("restart", "done", "restarted"),
     ("delete", "active", "deleted")],
)  # fmt: skip
def test_what_a_process_did_and_did_not_record_before_it_died_counts_as_done(
    any_env: Env, operation: str, before: str, outcome: str
) -> None:
    for schedule_id in create(any_env, 4):
        if before == "paused":
            any_env.scheduler.get(schedule_id).pause()
        if before == "done":
            any_env.scheduler.get(schedule_id).update(max_runs=1)
            any_env.run_next(any_env.scheduler.get(schedule_id), HOUR)
    runtime, filters = any_env.runtime, replace(BILLING, statuses=(before,))
    counted = bulk_actions.count(runtime, operation, "default", fix(runtime, filters, MOST), {})
    kept, bulk = metadata_of(any_env, "bulkset:"), Bulk(operation, context=ADA)
    for known in (counted, replace(counted, status="running", worker="gone", begun_at=counted.created_at)):
        for name, value in (kept | {f"bulk:{known.uid}": known.dumps()}).items():
            runtime.database.transact(partial(metadata.set_value, name=name, value=value))
        any_env.clock.advance(SILENT + SECOND)
        bulk_actions.begin(runtime, known, filters, bulk)
        wait_until(lambda: find(any_env, counted.uid).status == "done", what="its end")
        assert find(any_env, counted.uid).counts == {outcome: 4}
    any_env.advance(SECOND)
    other = bulk_actions.count(runtime, operation, "default", json.loads(kept[f"bulkset:{counted.uid}"]), {})
    bulk_actions.begin(runtime, other, filters, bulk)
    wait_until(lambda: find(any_env, other.uid).status == "done", what="its end")
    assert find(any_env, other.uid).counts == {"skipped": 4}, "another action has done it"


def test_members_of_a_set_are_looked_up_by_their_uids_where_no_statistics_say_so(env: Env) -> None:
    uids = [env.scheduler.get(schedule_id).uid for schedule_id in create(env, 3)]
    found = plan(env.runtime.database, lambda connection: schedule_queries.find_matching(connection, uids, BILLING))
    assert "SEARCH rqsched_schedules USING INDEX sqlite_autoindex_rqsched_schedules_1 (uid=?)" in found
