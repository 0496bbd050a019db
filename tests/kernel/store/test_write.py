"""The store reads back what it wrote, and its constraints refuse invalid rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, StatementError

from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.model import Change, Run, RunKind, RunStatus, Schedule, ScheduleStatus
from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from rqsched.kernel.store.rows import run_values
from rqsched.kernel.store.tables import audit_events, runs, schedules
from tests.kernel.store.samples import (
    LATER,
    NOW,
    add_runs,
    add_schedule,
    created,
    find,
    find_run,
    run_of,
    spec_text,
    write,
)
from tests.support.narrow import present

EVENTS = sa.select(audit_events.c.sequence, audit_events.c.event_type).order_by(audit_events.c.sequence)


def test_a_created_schedule_is_read_again_equal_with_its_event(database: Database) -> None:
    change = created(jitter=timedelta(seconds=7, microseconds=1), labels='{"team":"ops"}', max_runs=3)
    write(database, change)
    assert find(database, change.after.uid) == change.after
    assert database.read(lambda connection: connection.execute(EVENTS).all()) == [(1, "ScheduleCreated")]


def test_a_run_is_read_again_equal(database: Database) -> None:
    schedule = add_schedule(database)
    run = run_of(schedule, 1, attempt=2, is_override=True, retry_at=LATER, idempotency_key="once", result='{"rows":3}')
    add_runs(database, schedule, [run])
    assert find_run(database, run.uid) == run


@pytest.mark.parametrize("count", [3, 100], ids=["few", "many"])
@pytest.mark.parametrize("most", [1, 10_000_000], ids=["a row a statement", "one statement"])
def test_changes_written_together_are_read_again_equal(
    database: Database, monkeypatch: pytest.MonkeyPatch, most: int, count: int
) -> None:
    monkeypatch.setattr("rqsched.kernel.store.rows.DOCUMENT_CHARACTERS", most)
    changes = []
    for number in range(count):
        made = created(
            f"s-{number}",
            jitter=timedelta(microseconds=number),
            labels='{"team":"ops \\"a\\""}',
            max_runs=2**60 + number,
        )
        run = run_of(
            made.after, 1, is_override=number == 1, retry_at=LATER if number else None, error="'\n\t\u00e9\u2028"
        )
        changes.append(replace(made, new_runs=(run,)))
    write(database, *changes)
    moved = [
        replace(
            change,
            before=change.after,
            after=replace(change.after, next_run_at=None, due_at=None, note=f"note {n}", event_sequence=n + 2),
            new_runs=(),
            changed_runs=((change.new_runs[0], replace(change.new_runs[0], started_at=LATER, retry_at=None)),),
        )
        for n, change in enumerate(changes)
    ]
    moved = [replace(change, events=()) for change in moved]
    write(database, *moved)

    assert [find(database, change.after.uid) for change in moved] == [change.after for change in moved]
    assert [find_run(database, change.changed_runs[0][1].uid) for change in moved] == [
        change.changed_runs[0][1] for change in moved
    ]


@pytest.mark.parametrize(
    ("times", "more"), [(1, "[1]"), (13, "[1]"), (13, "\\u0000"), (13, "a\x00b")], ids=["few", "many", "escape", "NUL"]
)
def test_texts_that_must_be_escaped_and_values_that_only_some_rows_have_are_read_again_equal(
    database: Database, times: int, more: str
) -> None:
    if database.dialect.name != "sqlite":
        more = more.replace("\x00", "")  # PostgreSQL stores no such text
    hard = ["\x1f", 'a\x1f"b"', "{NULL,\\x}", "", "NULL", " , ", "\u00e9\U0001f600\t\r\n", None, more] * times
    schedule = add_schedule(database)
    found = [
        run_of(
            schedule,
            number,
            error=text,
            idempotency_key=None if number % 2 else f"key-{number}",
            timeout=number if number % 3 else None,
            queued_at=LATER if number % 2 else None,
        )
        for number, text in enumerate(hard, start=1)
    ]
    add_runs(database, schedule, found)
    assert [find_run(database, run.uid) for run in found] == found


def test_text_that_is_too_long_for_its_column_is_refused_in_a_batch_too(database: Database) -> None:
    if database.dialect.name == "sqlite":  # it knows no length
        return
    schedule = add_schedule(database)
    with pytest.raises(DataError):
        add_runs(database, schedule, [run_of(schedule, 1, queue="q" * 300), run_of(schedule, 2, queue="other")])


def test_instants_of_a_schedule_in_another_timezone_come_back_as_aware_utc_to_the_microsecond(
    database: Database,
) -> None:
    schedule = add_schedule(database, spec=spec_text("0 2 * * *", "America/New_York"))
    local = datetime(2026, 7, 1, 2, 0, 0, 654_321, tzinfo=ZoneInfo("America/New_York"))
    write(database, Change(schedule, replace(schedule, next_run_at=local, due_at=local, last_run_at=local)))
    found = present(find(database, schedule.uid))
    expected = datetime(2026, 7, 1, 6, 0, 0, 654_321, tzinfo=UTC)
    for instant in (found.next_run_at, found.due_at, found.last_run_at):
        assert instant == expected
        assert instant is not None
        assert instant.tzinfo is UTC


def test_instants_one_microsecond_apart_stay_apart_and_in_order(database: Database) -> None:
    schedule = add_schedule(database)
    whole = datetime(2026, 3, 1, tzinfo=UTC)
    instants = [whole - timedelta(microseconds=1), whole, whole + timedelta(microseconds=1)]
    add_runs(database, schedule, [run_of(schedule, n, occurrence_at=at) for n, at in enumerate(instants, start=1)])
    ordered = sa.select(runs.c.occurrence_at).order_by(runs.c.occurrence_at)
    assert database.read(lambda connection: connection.execute(ordered).scalars().all()) == instants
    after = database.read(lambda connection: changes.occurrences_run(connection, {schedule.uid: whole}))
    assert after == {schedule.uid: frozenset(instants[1:])}


def test_a_naive_instant_never_reaches_the_database(database: Database) -> None:
    schedule = add_schedule(database)
    naive = replace(schedule, last_run_at=datetime(2026, 1, 1))  # noqa: DTZ001 - the refused value
    with pytest.raises(StatementError, match="naive datetime"):
        write(database, Change(schedule, naive))


def test_sequences_of_audit_events_have_no_gap_over_many_changes(database: Database) -> None:
    schedule, other = add_schedule(database), add_schedule(database, "other")
    for _ in range(3):
        schedule = _apply(database, lifecycle.decide_pause(schedule, now=LATER))
        schedule = _apply(database, lifecycle.decide_resume(schedule, (), now=LATER))
    _apply(database, lifecycle.decide_pause(other, now=LATER))
    mine = EVENTS.where(audit_events.c.schedule_uid == schedule.uid)
    sequences = [sequence for sequence, _ in database.read(lambda connection: connection.execute(mine).all())]
    assert sequences == list(range(1, schedule.event_sequence + 1))
    assert len(sequences) >= 7


def _apply(database: Database, change: Change) -> Schedule:
    write(database, change)
    found = find(database, change.after.uid)
    assert found == change.after
    return change.after


def test_a_changed_definition_is_written_with_the_state(database: Database) -> None:
    schedule = add_schedule(database)
    definition = replace(schedule.definition, queue="high", description="every hour", spec=spec_text("0 * * * *"))
    change = lifecycle.decide_update(schedule, definition, now=LATER)
    assert _apply(database, change).definition.queue == "high"


def test_a_batch_of_changes_takes_as_few_statements_as_one(database: Database) -> None:
    statements: list[str] = []
    changes = [created(f"report-{number}") for number in range(50)]
    sa.event.listen(database.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    write(database, *changes)
    written = [statement for statement in statements if not statement.startswith("BEGIN")]
    assert [statement.split()[:3] for statement in written] == [
        ["INSERT", "INTO", "rqsched_schedules"],
        ["UPDATE", "rqsched_schedules", "SET"],  # those that others come after: they were there before
        ["INSERT", "INTO", "rqsched_audit_events"],
    ]


def test_only_one_schedule_of_an_identity_is_not_deleted(database: Database) -> None:
    add_schedule(database)
    with pytest.raises(IntegrityError):
        write(database, created(incarnation=2))


def test_an_identity_is_free_again_after_delete_and_history_stays(database: Database) -> None:
    first = _apply(database, lifecycle.decide_delete(add_schedule(database), now=LATER))
    write(database, created(incarnation=2))
    named = database.read(lambda connection: changes.find_named(connection, "default", "report"))
    assert named == created(incarnation=2).after
    assert find(database, first.uid) == first


def test_the_same_id_in_two_namespaces_names_two_schedules(database: Database) -> None:
    first = created()
    second = replace(created(incarnation=2).after, namespace="staging")
    write(database, first, Change(None, second))
    named = database.transact(lambda connection: changes.lock_named(connection, "staging", ["report"]))
    assert [schedule.uid for schedule in named.values()] == [second.uid]


def test_one_occurrence_has_one_run_live_and_backfill_together(database: Database) -> None:
    schedule = add_schedule(database)
    live = run_of(schedule, 1, occurrence_at=NOW)
    add_runs(database, schedule, [live, run_of(schedule, 2, kind=RunKind.BACKFILL, occurrence_at=NOW)])
    assert _run_uids(database) == [live.uid]
    with pytest.raises(IntegrityError):
        _insert_run(database, run_of(schedule, 3, kind=RunKind.BACKFILL, occurrence_at=NOW))


def test_a_manual_run_at_the_instant_of_an_occurrence_is_allowed(database: Database) -> None:
    schedule = add_schedule(database)
    live = run_of(schedule, 1, occurrence_at=NOW)
    manual = [run_of(schedule, number, kind=RunKind.MANUAL, occurrence_at=NOW) for number in (2, 3)]
    add_runs(database, schedule, [live, *manual])
    assert _run_uids(database) == sorted(run.uid for run in [live, *manual])


def test_two_incarnations_may_run_the_same_occurrence(database: Database) -> None:
    first = _apply(database, lifecycle.decide_delete(add_schedule(database), now=LATER))
    write(database, created(incarnation=2))
    second = created(incarnation=2).after
    for schedule in (first, second):
        add_runs(database, schedule, [run_of(schedule, 1, occurrence_at=NOW)])
    assert len(_run_uids(database)) == 2


def test_an_idempotency_key_starts_one_run_of_a_schedule(database: Database) -> None:
    schedule = add_schedule(database)
    first = run_of(schedule, 1, kind=RunKind.MANUAL, idempotency_key="once")
    add_runs(database, schedule, [first, run_of(schedule, 2, kind=RunKind.MANUAL, idempotency_key="once")])
    found = database.read(lambda connection: changes.find_run_by_key(connection, schedule.uid, "once"))
    assert (found, _run_uids(database)) == (first, [first.uid])


def _run_uids(database: Database) -> list[str]:
    uids = sa.select(runs.c.uid).order_by(runs.c.uid)
    return list(database.read(lambda connection: connection.execute(uids).scalars().all()))


def _insert_run(database: Database, run: Run) -> None:
    database.transact(lambda connection: connection.execute(sa.insert(runs), run_values(run)))


def test_two_audit_events_with_one_sequence_number_are_refused(database: Database) -> None:
    schedule = add_schedule(database)
    again = lifecycle.decide_pause(replace(schedule, event_sequence=0), now=LATER)
    with pytest.raises(IntegrityError):
        write(database, again)
    assert find(database, schedule.uid) == schedule


@pytest.mark.parametrize(
    ("table", "values"),
    [
        pytest.param(schedules, {"status": "asleep"}, id="a status of a schedule that there is not"),
        pytest.param(schedules, {"status": "paused"}, id="a paused schedule that is due (I4)"),
        pytest.param(schedules, {"due_at": None}, id="a nominal time without the instant it is due (I3)"),
        pytest.param(runs, {"status": "asleep"}, id="a status of a run that there is not"),
        pytest.param(runs, {"kind": "asleep"}, id="a kind of run that there is not"),
        pytest.param(runs, {"schedule_uid": "nobody"}, id="a run of no schedule"),
    ],
)
def test_the_database_refuses(database: Database, table: sa.Table, values: dict[str, object]) -> None:
    schedule = add_schedule(database)
    add_runs(database, schedule, [run_of(schedule, 1)])
    with pytest.raises(IntegrityError):
        database.transact(lambda connection: connection.execute(sa.update(table).values(**values)))


def test_a_schedule_that_ends_drops_its_waiting_runs_and_no_other(database: Database) -> None:
    statuses = _after(database, drops_buffer=True)
    assert statuses == {"pending": "pending", "running": "running", "retrying": "retrying", "buffered": "cancelled"}


def test_a_deleted_schedule_drops_its_waiting_retries_too(database: Database) -> None:
    statuses = _after(database, drops_buffer=True, drops_retries=True)
    assert statuses == {"pending": "pending", "running": "running", "retrying": "cancelled", "buffered": "cancelled"}


def _after(database: Database, *, drops_buffer: bool, drops_retries: bool = False) -> dict[str, str]:
    """Return the new status of one run of each open status. The runs of a second schedule must keep theirs."""
    open_statuses = [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.RETRYING, RunStatus.BUFFERED]
    found = []
    for name in ("ending", "other"):
        schedule = add_schedule(database, name)
        found.append([run_of(schedule, n, status) for n, status in enumerate(open_statuses, start=1)])
        add_runs(database, schedule, found[-1])
    ending = created("ending").after
    ended = replace(ending, status=ScheduleStatus.DELETED, next_run_at=None, due_at=None, updated_at=LATER)
    write(database, Change(ending, ended, drops_buffer=drops_buffer, drops_retries=drops_retries))
    assert [find_run(database, run.uid) for run in found[1]] == found[1]
    after = [find_run(database, run.uid) for run in found[0]]
    assert all(run.ended_at == LATER for run in after if run and run.status is RunStatus.CANCELLED)
    return {before.status.value: run.status.value for before, run in zip(found[0], after, strict=True) if run}
