"""Calendars: the effect of a create, change and deletion on schedules that name one, and the refusals."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every, Once
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.errors import (
    CalendarBusyError,
    CalendarChangedError,
    CalendarInUseError,
    CalendarNotFoundError,
    InvalidIdError,
    InvalidLimitError,
    InvalidSpecError,
    TooMuchWorkError,
    UnknownCalendarError,
)
from rqsched.features.calendars import chain, store
from rqsched.kernel.decide.audit import CommandContext
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store import named_calendars, tables
from rqsched.when.calendars import Calendar
from tests.support.env import DAY, HOUR, MINUTE, NOON, Env, last, link_id, occurrences, outcomes, types
from tests.support.invariants import check_invariants
from tests.support.narrow import present
from tests.support.sql import silent_database, statements, wait_for_a_lock

pytestmark = pytest.mark.every_database

MORNING = NOON + 21 * HOUR
"""09:00 on Friday, 2026-01-16."""
DAILY = Cron("0 9 * * *")


def edit_alone(env: Env, name: str, exclude: list[str]) -> Calendar:
    """Change a calendar in SQL, as a process does that dies before it plans anything again."""
    before = env.scheduler.calendars.get(name)

    def work(connection: Any) -> Calendar:
        now = env.clock.now()
        edit = new_uid(now)
        wanted = Calendar(name, tuple(exclude), before.namespace, before.revision + 1, edit, now, changed_at=now)
        store.write(connection, wanted, before, store.change_of(wanted, before, None))
        return wanted

    return env.runtime.database.transact(work)


def next_of(schedule: ScheduleHandle) -> datetime | None:
    return schedule.refresh().next_run_at


def test_schedule_never_fires_on_what_a_calendar_that_it_names_excludes(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-01-16", "2026-01-18"])
    schedule = any_env.create(spec=DAILY, exclude=["holidays", "Sat"])

    assert next_of(schedule) == MORNING + 3 * DAY
    any_env.run_due(MORNING + 3 * DAY - NOON)

    assert occurrences(schedule) == [MORNING + 3 * DAY]
    assert last(schedule, "Excluded")["count"] == 3
    check_invariants(any_env.runtime)


def test_change_of_a_calendar_plans_again_what_names_it_and_nothing_else(any_env: Env) -> None:
    calendar = any_env.scheduler.calendars.set("holidays", ["2026-01-20"])
    naming, other = any_env.create(spec=DAILY, exclude="holidays"), any_env.create("other", DAILY)
    before = any_env.state(other)
    assert next_of(naming) == MORNING

    who = CommandContext(principal="ada", reason="a bridge day")
    changed = any_env.scheduler.calendars.set("holidays", ["2026-01-16"], context=who)

    assert (changed.revision, changed.changed_by, calendar.revision) == (2, "ada", 1)
    assert next_of(naming) == MORNING + DAY
    assert last(naming, "CalendarChanged") == {
        "calendar": "holidays", "revision": 2, "changed_by": "ada", "next_fire_at": "2026-01-17T09:00:00Z",
    }  # fmt: skip
    assert any_env.state(other) == before
    assert any_env.armed()[link_id(naming)] == (MORNING + DAY).timestamp()
    any_env.scheduler.calendars.set("holidays", [])
    assert next_of(naming) == MORNING
    check_invariants(any_env.runtime)


def test_same_contents_again_are_no_change(env: Env) -> None:
    first = env.scheduler.calendars.set("holidays", ["2026-01-16", "Sat,Sun"], reaches=date(2026, 12, 31))

    again = env.scheduler.calendars.set("holidays", ["Sat, Sun", "2026-01-16"], reaches=date(2026, 12, 31))

    assert again == first
    assert len(env.scheduler.calendars.history(first)) == 1


def test_calendar_remembers_who_changed_what(env: Env) -> None:
    env.scheduler.calendars.set("holidays", ["2026-01-16"], context=CommandContext(principal="ada"))
    env.advance()
    calendar = env.scheduler.calendars.set(
        "holidays", ["2026-01-17"], context=CommandContext(principal="bob", reason="wrong day")
    )

    assert env.scheduler.calendars.history(calendar) == [
        {
            "revision": 2, "at": "2026-01-15T12:01:00Z", "by": "bob", "reason": "wrong day",
            "added": ["2026-01-17"], "removed": ["2026-01-16"],
        },
        {"revision": 1, "at": "2026-01-15T12:00:00Z", "by": "ada", "added": ["2026-01-16"], "removed": []},
    ]  # fmt: skip


def test_fire_notices_a_change_after_which_nothing_was_planned(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", [])
    schedule = any_env.create(spec=DAILY, exclude="holidays")
    edit_alone(any_env, "holidays", ["2026-01-16"])
    assert next_of(schedule) == MORNING
    any_env.advance(MORNING - NOON)

    assert outcomes(any_env.deliver(link_id(schedule))) == ["fired"]

    assert (occurrences(schedule), next_of(schedule)) == ([], MORNING + DAY)
    assert types(schedule)[-1] == "CalendarChanged"
    assert any_env.armed()[link_id(schedule)] == (MORNING + DAY).timestamp()
    check_invariants(any_env.runtime)


def test_what_was_due_before_the_change_keeps_its_fire(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", [])
    schedule = any_env.create(spec=DAILY, exclude="holidays")
    any_env.advance(MORNING - NOON + HOUR)

    any_env.scheduler.calendars.set("holidays", ["2026-01-16"])

    assert next_of(schedule) == MORNING
    any_env.run_due(MINUTE)
    assert (occurrences(schedule), next_of(schedule)) == ([MORNING], MORNING + DAY)
    check_invariants(any_env.runtime)


def test_what_was_due_before_a_change_that_only_its_fire_notices_keeps_its_fire(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=DAILY, exclude="holidays")
    env.advance(MORNING - NOON + HOUR)
    edit_alone(env, "holidays", ["2026-01-16", "2026-01-17"])
    env.advance(MINUTE)

    env.run_due(MINUTE)

    assert (occurrences(schedule), next_of(schedule)) == ([MORNING], MORNING + 2 * DAY)
    check_invariants(env.runtime)


def test_two_changes_of_which_none_was_planned_count_from_the_first(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=DAILY, exclude="holidays")
    edit_alone(env, "holidays", ["2026-01-16"])
    env.advance(MORNING - NOON + HOUR)
    edit_alone(env, "holidays", ["2026-01-16", "2026-02-16"])

    env.run_due(MINUTE)

    assert (occurrences(schedule), next_of(schedule)) == ([], MORNING + DAY)


def test_what_the_first_of_two_changes_moved_to_a_day_that_has_passed_is_not_lost_by_the_second(env: Env) -> None:
    env.scheduler.calendars.set("holidays", ["2026-03-01"])
    schedule = env.create(spec=Cron("0 9 18 * *"), exclude="holidays", on_excluded="previous")
    env.advance(2 * DAY)

    edit_alone(env, "holidays", ["2026-01-18", "2026-03-01"])
    env.advance(MINUTE)
    env.scheduler.calendars.set("holidays", ["2026-01-18", "2026-03-02"])

    env.run_due(MINUTE)
    assert [run.moved_from for run in schedule.runs().items] == [[MORNING + 2 * DAY]]
    check_invariants(env.runtime)


def test_pass_ends_what_a_process_that_died_left(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-01-16"])
    naming = [any_env.create(f"s{number}", DAILY, exclude="holidays") for number in range(3)]
    naming[1].pause()
    edit_alone(any_env, "holidays", [])
    assert next_of(naming[0]) == MORNING + DAY

    assert any_env.recover().retimed == 0  # whoever changed it may be at it
    any_env.advance(any_env.scheduler.settings.repair_grace)
    assert any_env.recover().retimed == 2
    assert any_env.recover().retimed == 0

    assert [next_of(one) for one in naming] == [MORNING, None, MORNING]
    check_invariants(any_env.runtime)


def test_operation_on_a_schedule_plans_it_first(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=DAILY, exclude="holidays")
    edit_alone(env, "holidays", ["2026-01-16"])

    schedule.update(description="other")

    assert next_of(schedule) == MORNING + DAY
    assert types(schedule)[-2:] == ["CalendarChanged", "Updated"]


def test_many_schedules_are_planned_again_in_batches(any_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCH", 3)
    monkeypatch.setattr(chain, "PAGE", 4)
    before = any_env.scheduler.calendars.set("holidays", [])
    naming = [any_env.create(f"s{number}", DAILY, exclude="holidays") for number in range(10)]
    after = edit_alone(any_env, "holidays", ["2026-01-16"])

    batches = [*chain.plan_again(any_env.runtime, after, before)]

    assert [(one.checked, one.moved) for one in batches] == [(3, 3), (1, 1), (3, 3), (1, 1), (2, 2)]
    assert {next_of(one) for one in naming} == {MORNING + DAY}
    assert any_env.runtime.database.read(partial(store.unplanned, before=any_env.clock.now())) == []
    check_invariants(any_env.runtime)


@contextmanager
def at_transactions(env: Env, numbers: Container[int], act: Callable[[], object]) -> Iterator[None]:
    """Act before these transactions of SQLite begin, those of `act` not counted: as another process does."""
    begun, is_acting = 0, False

    def note(word: str) -> None:
        nonlocal begun, is_acting
        if word != "BEGIN" or is_acting:
            return
        begun += 1
        if begun in numbers:
            is_acting = True
            act()
            is_acting = False

    with statements(env.runtime, note):
        yield


def test_schedule_that_changes_while_it_is_planned_again_is_planned_as_it_is_then(env: Env) -> None:
    before = env.scheduler.calendars.set("holidays", [])
    first, second = (env.create(f"s{number}", DAILY, exclude="holidays") for number in range(2))
    after = edit_alone(env, "holidays", ["2026-01-16"])

    with at_transactions(env, {3}, first.pause):  # a page is read, then the schedules; then they are written
        (planned,) = chain.plan_again(env.runtime, after, before)

    assert (planned.checked, planned.moved, planned.failed) == (2, 1, 0)
    assert (first.refresh().status, next_of(second)) == ("paused", MORNING + DAY)
    first.resume()
    assert next_of(first) == MORNING + DAY
    assert env.runtime.database.read(partial(store.unplanned, before=env.clock.now())) == []
    check_invariants(env.runtime)


def test_schedule_that_changes_each_time_is_left_to_a_pass(env: Env) -> None:
    before = env.scheduler.calendars.set("holidays", [])
    busy, quiet = (env.create(f"s{number}", DAILY, exclude="holidays") for number in range(2))
    after = edit_alone(env, "holidays", ["2026-01-16"])
    notes = iter("abcdefghij")

    with at_transactions(env, range(3, 99), lambda: busy.update(note=next(notes))):
        (planned,) = chain.plan_again(env.runtime, after, before)

    assert (planned.checked, planned.failed) == (2, 1)
    assert next_of(quiet) == MORNING + DAY
    env.advance(env.scheduler.settings.repair_grace)
    env.recover()
    assert next_of(busy) == MORNING + DAY
    assert env.runtime.database.read(partial(store.unplanned, before=env.clock.now())) == []
    check_invariants(env.runtime)


PLANNING: dict[str, Callable[[Env], object]] = {
    "create": lambda env: env.create("new", DAILY, exclude="holidays"),
    "upsert of a new one": lambda env: env.scheduler.upsert("new", "note", DAILY, exclude="holidays"),
    "upsert of a known one": lambda env: env.scheduler.upsert("known", "note", DAILY, exclude="holidays"),
    "update": lambda env: env.scheduler.get("known").update(spec=DAILY, exclude="holidays"),
}


@pytest.mark.parametrize("plan", PLANNING.values(), ids=PLANNING.keys())
def test_what_is_planned_with_a_calendar_that_changes_meanwhile_is_planned_again(
    env: Env, plan: Callable[[Env], object]
) -> None:
    env.create("known", Cron("0 5 * * *"))
    env.scheduler.calendars.set("holidays", [])

    with at_transactions(env, {2}, lambda: edit_alone(env, "holidays", ["2026-01-16"])):
        plan(env)

    states = map(env.state, env.scheduler.list().items)
    (changed,) = (one for one in states if one.definition.parsed_spec.exclude)
    assert changed.next_run_at == MORNING + DAY
    check_invariants(env.runtime)


@pytest.mark.parametrize("plan", PLANNING.values(), ids=PLANNING.keys())
def test_calendar_that_changes_each_time_is_a_conflict_and_nothing_is_written(
    env: Env, plan: Callable[[Env], object]
) -> None:
    env.create("known", Cron("0 5 * * *"))
    env.scheduler.calendars.set("holidays", [])
    days = (f"2026-02-{number:02}" for number in range(1, 29))

    with (
        at_transactions(env, range(2, 99), lambda: edit_alone(env, "holidays", [next(days)])),
        pytest.raises(CalendarBusyError, match="changed 3 times"),
    ):
        plan(env)

    assert [one.schedule_id for one in env.scheduler.list().items] == ["known"]
    assert env.state(env.scheduler.get("known")).definition.parsed_spec.exclude == ()


def test_calendar_that_is_set_while_others_set_it_is_a_conflict(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    days = (f"2026-02-{number:02}" for number in range(1, 29))

    with (
        at_transactions(env, range(2, 99), lambda: edit_alone(env, "holidays", [next(days)])),
        pytest.raises(CalendarBusyError),
    ):
        env.scheduler.calendars.set("holidays", ["2026-03-01"])

    assert env.scheduler.calendars.get("holidays").exclude != ("2026-03-01",)


def test_calendar_with_which_a_schedule_takes_too_many_steps_is_refused(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.scheduler.calendars.set("closed", ["2026-02-01"])
    schedule = env.create("report", DAILY, exclude="closed")
    days = [str(date(2026, 1, 17) + 2 * number * DAY) for number in range(500)]
    monkeypatch.setattr(chain, "MOST_STEPS", 1)

    with pytest.raises(TooMuchWorkError) as refused:
        env.scheduler.calendars.set("closed", [*days, "Mon-Fri", "00:00-12:00"])

    assert "'report'" in refused.value.__notes__[0]
    assert env.scheduler.calendars.get("closed").exclude == ("2026-02-01",)
    assert next_of(schedule) == MORNING


def test_one_that_cannot_be_planned_stops_no_other_and_is_tried_again(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    naming = [env.create(f"s{number}", DAILY, exclude="holidays") for number in range(3)]
    good = env.state(naming[1]).definition.policies
    write(env, naming[1], policies="no json")

    env.scheduler.calendars.set("holidays", ["2026-01-16"])

    assert next_of(naming[0]) == next_of(naming[2]) == MORNING + DAY
    env.advance(env.scheduler.settings.repair_grace)
    assert env.recover().failed
    write(env, naming[1], policies=good)
    assert env.recover().retimed == 1
    assert next_of(naming[1]) == MORNING + DAY


def write(env: Env, schedule: ScheduleHandle, **values: Any) -> None:
    statement = sa.update(tables.schedules).where(tables.schedules.c.uid == schedule.uid).values(**values)
    env.runtime.database.transact(lambda connection: connection.execute(statement))


def test_schedule_of_which_its_calendar_excludes_everything_stays_active_and_fires_when_it_may(any_env: Env) -> None:
    any_env.scheduler.calendars.set("work", ["Sat, Sun"])
    schedule = any_env.create(spec=DAILY, exclude="work")

    any_env.scheduler.calendars.set("work", ["Mon-Fri", "Sat 08:00-10:00", "Sun 08:00-10:00"])

    assert (schedule.refresh().status, schedule.next_run_at) == ("active", None)
    assert "all its occurrences" in schedule.why().text.lower()
    any_env.advance(DAY)
    any_env.recover()
    assert schedule.refresh().status == "active"
    any_env.scheduler.calendars.set("work", ["Mon-Fri"])
    assert next_of(schedule) == MORNING + DAY
    check_invariants(any_env.runtime)


def test_single_run_that_a_calendar_excluded_is_over_once_its_time_has_passed(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=Once(MORNING), exclude="holidays")
    env.scheduler.calendars.set("holidays", ["2026-01-16"])
    assert (schedule.refresh().status, schedule.next_run_at) == ("active", None)

    env.advance(2 * DAY)
    env.recover()

    assert (schedule.refresh().status, occurrences(schedule)) == ("done", [])


def test_spec_of_which_calendars_exclude_all_is_refused_at_creation_and_at_a_change(env: Env) -> None:
    env.scheduler.calendars.set("work", ["Mon-Fri"])
    schedule = env.create(spec=DAILY)
    for change in (
        lambda: env.create("other", DAILY, exclude=["work", "Sat, Sun"]),
        lambda: schedule.update(exclude=["work", "Sat, Sun"]),
        lambda: env.scheduler.upsert("nightly2", "note", DAILY, exclude=["work", "Sat, Sun"]),
    ):
        with pytest.raises(InvalidSpecError, match="covers every occurrence"):
            change()


def test_unknown_calendar_is_refused_before_anything_is_written(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", [])
    schedule = any_env.create(spec=DAILY)
    before = any_env.state(schedule)
    for change in (
        lambda: any_env.create("other", DAILY, exclude="holydays"),
        lambda: any_env.scheduler.upsert("other", "note", DAILY, exclude="holydays"),
        lambda: schedule.update(exclude=["holydays"]),
    ):
        with pytest.raises(UnknownCalendarError, match="did you mean holidays") as refused:
            change()
        assert refused.value.field == "exclude"
    assert any_env.state(schedule) == before
    assert any_env.scheduler.count() == 1


def test_calendar_that_is_named_is_not_deleted_and_says_by_whom(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", [])
    schedule = any_env.create(spec=DAILY, exclude="holidays")

    with pytest.raises(CalendarInUseError, match="is named by report;"):
        any_env.scheduler.calendars.delete("holidays")

    schedule.update(exclude=())
    any_env.scheduler.calendars.delete("holidays")
    with pytest.raises(CalendarNotFoundError):
        any_env.scheduler.calendars.get("holidays")
    with pytest.raises(CalendarNotFoundError):
        any_env.scheduler.calendars.delete("holidays")
    assert next_of(schedule) == MORNING
    check_invariants(any_env.runtime)


def test_deleted_schedule_holds_no_calendar_and_can_be_looked_at_without_it(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=DAILY, exclude="holidays")
    schedule.delete()

    env.scheduler.calendars.delete("holidays")

    assert env.scheduler.newest(schedule.schedule_id).upcoming() == []
    assert env.scheduler.newest(schedule.schedule_id).history()


def test_shared_calendar_serves_every_namespace_and_one_name_means_one_calendar(env: Env) -> None:
    env.scheduler.calendars.set("public", ["2026-01-16"], shared=True)
    here = env.create(spec=DAILY, exclude="public")
    there = env.scheduler.create("nightly", "note", DAILY, exclude="public", namespace="other")
    assert next_of(here) == next_of(there) == MORNING + DAY

    calendar = env.scheduler.calendars.set("public", [], shared=True)

    assert next_of(here) == next_of(there) == MORNING
    assert sorted(env.scheduler.calendars.used_by(calendar)) == [("default", "report"), ("other", "nightly")]
    assert [one.name for one in env.scheduler.calendars.list(namespace="third")] == ["public"]
    with pytest.raises(InvalidIdError, match="shared by all namespaces"):
        env.scheduler.calendars.set("public", [], namespace="other")
    env.scheduler.calendars.set("mine", [], namespace="other")
    with pytest.raises(InvalidIdError, match="of namespace 'other'"):
        env.scheduler.calendars.set("mine", [], shared=True)
    with pytest.raises(UnknownCalendarError):
        env.create("no", DAILY, exclude="mine")


def test_revision_lets_nobody_replace_what_they_have_not_seen(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [], revision=0)
    with pytest.raises(CalendarChangedError, match="is at revision 1, not 0"):
        env.scheduler.calendars.set("holidays", ["2026-01-16"], revision=0)
    env.scheduler.calendars.set("holidays", ["2026-01-16"], revision=1)
    with pytest.raises(CalendarChangedError, match="is at revision 2, not 1"):
        env.scheduler.calendars.delete("holidays", revision=1)
    with pytest.raises(CalendarChangedError, match="is not there"):
        env.scheduler.calendars.set("other", [], revision=3)


def test_namespace_holds_no_more_calendars_than_it_may(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MAX_CALENDARS", 2)
    for name in ("one", "two"):
        env.scheduler.calendars.set(name, [])
    with pytest.raises(InvalidLimitError, match="there are 2 calendars already"):
        env.scheduler.calendars.set("three", [])
    env.scheduler.calendars.set("two", ["Sat"])


def test_paused_schedule_continues_by_the_calendar_as_it_is_then(env: Env) -> None:
    env.scheduler.calendars.set("holidays", [])
    schedule = env.create(spec=DAILY, exclude="holidays")
    schedule.pause()
    env.scheduler.calendars.set("holidays", ["2026-01-16"])

    schedule.resume()

    assert next_of(schedule) == MORNING + DAY


def test_interval_from_completion_waits_for_the_end_of_what_a_calendar_excludes(env: Env) -> None:
    env.scheduler.calendars.set("holidays", ["2026-01-16"])
    schedule = env.create(spec=Every("18h", from_completion=True), exclude="holidays")

    assert present(next_of(schedule)).date() == date(2026, 1, 17)

    check_invariants(env.runtime)


def test_schedules_without_calendars_ask_nothing_of_them(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", ["2026-01-20"])
    with statements(any_env.runtime) as sent:
        schedule = any_env.create(spec=DAILY, exclude="Sat")
        any_env.run_due(MORNING - NOON)
    assert occurrences(schedule) == [MORNING]
    assert [text for text in sent if "rqsched_calendars" in text] == []


def test_calendar_is_not_deleted_beside_a_creation_that_names_it(postgres_env: Env) -> None:
    postgres_env.scheduler.calendars.set("holidays", [])
    with ThreadPoolExecutor(1) as threads:
        with postgres_env.runtime.database.engine.begin() as other:
            postgres_env.scheduler.create("nightly", "note", DAILY, exclude="holidays", connection=other)
            deleting = threads.submit(postgres_env.scheduler.calendars.delete, "holidays")
            wait_for_a_lock(postgres_env.runtime.database)
        with pytest.raises(CalendarInUseError):
            deleting.result()


@pytest.mark.parametrize("is_shared", [False, True])
def test_of_a_shared_calendar_and_one_of_a_namespace_created_at_once_one_is_refused(
    postgres_env: Env, is_shared: bool
) -> None:
    calendars, engine = postgres_env.scheduler.calendars, postgres_env.runtime.database.engine
    first = Calendar(
        "closed", ("2026-01-16",), None if is_shared else "default", 1, new_uid(NOON), NOON, changed_at=NOON
    )
    with ThreadPoolExecutor(1) as threads:
        with engine.begin() as other:
            store.lock_calendars(other)
            assert store.write(other, first, None, store.change_of(first, None, None))
            creating = threads.submit(calendars.set, "closed", [], shared=not is_shared)
            wait_for_a_lock(postgres_env.runtime.database)
        with pytest.raises(InvalidIdError, match="and schedules could mean either"):
            creating.result()


def test_change_of_a_calendar_whose_answer_was_lost_is_one_change(any_env: Env) -> None:
    any_env.scheduler.calendars.set("holidays", [])
    schedule = any_env.create(spec=DAILY, exclude="holidays")
    silent_database(any_env.runtime).lose()

    calendar = any_env.scheduler.calendars.set("holidays", ["2026-01-16"])

    assert (calendar.revision, len(any_env.scheduler.calendars.history(calendar))) == (2, 2)
    assert next_of(schedule) == MORNING + DAY
    check_invariants(any_env.runtime)


def test_occurrence_that_a_calendar_moved_happens_once_whatever_the_calendar_becomes(any_env: Env) -> None:
    """The occurrence of the 16th happens on the 15th, and not again if the 16th becomes open later."""
    any_env.scheduler.calendars.set("bank", ["2026-01-20"])
    payroll = any_env.create(spec=Cron("0 13 20 * *"), exclude="bank", on_excluded="previous")
    assert next_of(payroll) == NOON + 4 * DAY + HOUR

    any_env.run_due(4 * DAY + HOUR)
    assert occurrences(payroll) == [NOON + 4 * DAY + HOUR]
    any_env.scheduler.calendars.set("bank", [])

    assert next_of(payroll) == datetime(2026, 2, 20, 13, tzinfo=UTC)
    check_invariants(any_env.runtime)


def test_calendar_of_a_schedule_that_moves_holds_whole_days(env: Env) -> None:
    env.scheduler.calendars.set("bank", ["2026-01-20"])
    env.scheduler.calendars.set("nights", ["00:00-06:00"])
    env.create(spec=Cron("0 13 20 * *"), exclude="bank", on_excluded="previous")

    with pytest.raises(InvalidSpecError, match="moves what is excluded over whole days"):
        env.scheduler.calendars.set("bank", ["2026-01-20", "00:00-06:00"])
    with pytest.raises(InvalidSpecError, match="moves over whole days only"):
        env.create("other", Cron("0 13 20 * *"), exclude="nights", on_excluded="next")
    assert env.scheduler.calendars.get("bank").exclude == ("2026-01-20",)


def lose(env: Env, name: str) -> None:
    """Remove the row of a calendar by hand, or by a backup that was restored in part."""
    gone = sa.delete(tables.calendars).where(tables.calendars.c.name == name)
    env.runtime.database.transact(lambda connection: connection.execute(gone))


@pytest.mark.parametrize("wait", [0 * DAY, DAY], ids=["ahead", "due"])
def test_schedule_whose_calendar_is_gone_is_shown_paused_changed_and_deleted(env: Env, wait: timedelta) -> None:
    for name in ("holidays", "bridges"):
        env.scheduler.calendars.set(name, ["2026-01-20"])
    moved = {"exclude": ["bridges", "holidays", "Sun"], "on_excluded": "previous", "spread": "2h", "jitter": "1m"}
    forms: dict[str, dict[str, Any]] = {"plain": {"exclude": "holidays"}, "moved": moved}
    made = {
        (form, does): env.create(f"{form}-{does}", DAILY, **options)
        for form, options in forms.items()
        for does in ("pause", "delete", "free", "note", "end", "skip")
    }
    for form in forms:
        made[form, "skip"].skip_next(2)
    lose(env, "holidays")
    env.advance(wait)

    assert len(env.scheduler.list(limit=100).items) == len(made)
    does_what: dict[str, Callable[[ScheduleHandle], object]] = {
        "pause": lambda one: one.pause(),
        "skip": lambda one: one.pause(),
        "delete": lambda one: one.delete(),
        "free": lambda one: one.update(exclude=[]),
        "note": lambda one: one.update(note="looked at"),
        "end": lambda one: one.update(spec=Once(NOON + 50 * DAY), exclude="bridges"),
    }
    for (_, does), schedule in made.items():
        assert schedule.describe().next_run_at == schedule.next_run_at
        assert schedule.why(NOON + 40 * DAY).answer == "excluded"
        does_what[does](schedule)
        if does in {"pause", "skip"}:
            with pytest.raises(InvalidSpecError, match="holidays"):
                schedule.resume()
    env.scheduler.recover(deep=True)

    lost = env.runtime.database.read(lambda connection: store.lacking(connection, None, 100))
    assert {name.partition("-")[2] for _, name, _ in lost} == {"pause", "skip", "note"}
    env.scheduler.calendars.set("holidays", ["2026-01-21"])
    assert env.runtime.database.read(lambda connection: store.lacking(connection, None, 100)) == []
    for (_, does), schedule in made.items():
        if does in {"pause", "skip"}:
            schedule.resume()
        if does not in {"delete", "end"}:
            assert next_of(schedule) is not None
    check_invariants(env.runtime)


def test_schedule_whose_calendar_is_gone_fires_no_more_stops_no_other_and_continues_with_it(env: Env) -> None:
    env.scheduler.calendars.set("holidays", ["2026-01-20"])
    naming, other = env.create(spec=DAILY, exclude="holidays"), env.create("other", DAILY)
    lose(env, "holidays")

    env.run_due(DAY)

    assert occurrences(naming) == []
    assert "holidays" in last(naming, "ScheduleFireFailed")["error"]
    assert occurrences(other) == [MORNING]
    assert env.scheduler.recover(deep=True).failed == 0

    env.scheduler.calendars.set("holidays", ["2026-01-20"])
    env.run_due(HOUR)
    env.run_due(DAY)

    assert occurrences(naming) == [MORNING, MORNING + DAY]
    check_invariants(env.runtime)


def test_calendar_that_changes_while_it_is_read_is_read_as_it_is_then(postgres_env: Env) -> None:
    postgres_env.scheduler.calendars.set("holidays", ["2026-01-16"])
    named_calendars._known.clear()
    asked = list[str]()

    def change_before_contents(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "rqsched_calendars" in statement and not asked:
            asked.append(statement)
            edit_alone(postgres_env, "holidays", ["2026-01-17"])

    def read(connection: Any) -> tuple[Calendar, ...]:
        sa.event.listen(connection, "after_cursor_execute", change_before_contents)
        return named_calendars.named(connection, "default", ["holidays"])

    (found,) = postgres_env.runtime.database.transact(read)

    assert asked
    assert found.exclude == ("2026-01-17",)
