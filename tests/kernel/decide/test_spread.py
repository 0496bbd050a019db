"""A spread delays each fire of a schedule by one offset of its own; the occurrences stay where they are."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqsched import Every, Spec
from rqsched.errors import InvalidPolicyError
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import Definition, Schedule
from rqsched.kernel.decide.occurrences import due_of, due_times
from rqsched.kernel.decide.policy import Policies
from rqsched.when.spec import SpecLike
from tests.support.decisions import UID, active, definition, fire
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, SECOND

SPECS: list[SpecLike] = [
    "*/5 * * * *", "0 9,10,17 * * *", "0 0 * * *", "7,8 1-3 * * *", Every("90s"), Every("6h", offset="5h"),
    Spec(["*/20 * * * *", Every("9m", offset="4m")]), Spec("30 1,2,3 * * *", "Europe/Berlin"),
    Spec("0 * * * *", end_at=NOON + 27 * HOUR),
    Spec("*/30 * * * *", "Europe/Berlin", exclude=["Sat, Sun", "09:00-10:10"]),
]  # fmt: skip
lengths = st.timedeltas(SECOND, DAY)
names = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)


def spread(
    spec: SpecLike, length: timedelta, schedule_id: str = "nightly", jitter: timedelta = timedelta(0)
) -> Schedule:
    identity = lifecycle.Identity(UID, "default", schedule_id)
    return lifecycle.decide_create(identity, _definition(spec, length, jitter), now=NOON).after


def _definition(spec: SpecLike, length: timedelta, jitter: timedelta = timedelta(0)) -> Definition:
    return definition(spec, policies=Policies(spread=length, retry=ONCE), jitter=jitter)


def some(schedule: Schedule, count: int = 60) -> list[datetime]:
    return list(islice(schedule.spec.between(NOON, NOON + 400 * DAY), count))


@given(st.sampled_from(SPECS), lengths, names, st.just(timedelta(0)) | lengths)
def test_a_fire_is_due_before_the_next_occurrence_the_end_and_a_stretch(
    spec: SpecLike, length: timedelta, schedule_id: str, jitter: timedelta
) -> None:
    schedule = spread(spec, length, schedule_id, jitter)
    occurrences = some(schedule)
    for nominal, following in pairwise([*occurrences, None]):
        assert nominal is not None
        due = due_of(schedule, nominal)
        assert nominal <= due < nominal + length + jitter
        assert following is None or due < following
        assert schedule.spec.end_at is None or due < schedule.spec.end_at
        assert schedule.spec.excluded_by(due) is None
        assert not (schedule.spec.exclusion and schedule.spec.exclusion.holds(due))


@given(st.sampled_from(["0 * * * *", "0 0 * * *", Every("1h")]), st.timedeltas(SECOND, HOUR), names)
def test_each_fire_has_the_same_offset_where_the_gap_has_room_for_it(
    spec: SpecLike, length: timedelta, schedule_id: str
) -> None:
    schedule = spread(spec, length, schedule_id)
    assert len({due_of(schedule, nominal) - nominal for nominal in some(schedule)}) == 1


@given(st.sampled_from(SPECS), lengths, names, st.just(timedelta(0)) | lengths)
def test_the_due_times_of_many_are_those_of_each(
    spec: SpecLike, length: timedelta, schedule_id: str, jitter: timedelta
) -> None:
    schedule = spread(spec, length, schedule_id, jitter)
    occurrences = some(schedule)
    several = due_times(schedule, schedule.spec.between(NOON, NOON + 400 * DAY))
    assert list(islice(several, len(occurrences))) == [due_of(schedule, nominal) for nominal in occurrences]


def test_jitter_is_added_to_the_offset_and_takes_what_it_leaves_of_the_gap() -> None:
    both, alone = spread("0 * * * *", HOUR, jitter=5 * MINUTE), spread("0 * * * *", HOUR)
    delays = {due_of(both, nominal) - due_of(alone, nominal) for nominal in some(both)}
    assert len(delays) > 50
    assert timedelta(0) <= min(delays) < max(delays) < 5 * MINUTE
    wide = spread("0 * * * *", HOUR, jitter=DAY)
    assert max(due_of(wide, nominal) - nominal for nominal in some(wide)) < HOUR


def test_the_offset_is_that_of_the_namespace_and_the_id() -> None:
    """A pinned value: another hash would move every due time."""
    schedule = spread("0 * * * *", HOUR)
    assert schedule.due_at == NOON + timedelta(hours=1, minutes=46, seconds=14, microseconds=781_244)
    again = lifecycle.decide_create(
        lifecycle.Identity("01KF0000000000000000000009", "default", "nightly"), _definition("0 * * * *", HOUR), now=NOON
    ).after
    assert again.due_at == schedule.due_at
    other = lifecycle.decide_create(
        lifecycle.Identity(UID, "other", "nightly"), _definition("0 * * * *", HOUR), now=NOON
    ).after
    assert other.due_at != schedule.due_at


def test_many_schedules_fill_the_spread_evenly() -> None:
    midnight = NOON + 12 * HOUR
    offsets = [due_of(spread("0 0 * * *", 2 * HOUR, f"r-{number}"), midnight) - midnight for number in range(2_000)]
    per_tenth = [sum(n * 12 * MINUTE <= offset < (n + 1) * 12 * MINUTE for offset in offsets) for n in range(10)]
    assert sum(per_tenth) == 2_000
    assert all(150 < count < 250 for count in per_tenth)


def test_a_spread_does_not_delay_into_a_stretch() -> None:
    for number in range(60):
        schedule = spread(Spec("0 23 * * *", exclude="Sat, Sun"), DAY, f"r-{number}")
        friday = NOON.replace(hour=23) + DAY
        assert friday <= due_of(schedule, friday) < friday + HOUR


def test_the_fire_is_late_and_its_occurrence_is_not() -> None:
    schedule = spread("0 * * * *", 40 * MINUTE)
    assert schedule.next_run_at == NOON + HOUR
    change = fire(schedule, now=schedule.due_at)
    assert change.new_runs[0].occurrence_at == NOON + HOUR
    assert change.new_runs[0].due_at == schedule.due_at
    assert change.after.due_at == schedule.due_at + HOUR  # type: ignore[operator]


def test_another_spread_moves_the_due_time_and_not_the_occurrence() -> None:
    schedule = spread("0 * * * *", 40 * MINUTE)
    for length in (20 * MINUTE, timedelta(0), DAY):
        changed = lifecycle.decide_update(schedule, _definition("0 * * * *", length), now=NOON + MINUTE).after
        assert changed.next_run_at == schedule.next_run_at
        assert changed.due_at == due_of(changed, NOON + HOUR) != schedule.due_at
        assert changed.n > schedule.n


def test_a_timing_that_fires_sooner_does_not_overtake_an_occurrence_inside_its_spread() -> None:
    schedule = spread("0 * * * *", HOUR, "r-1")
    now = NOON + HOUR + SECOND
    changed = lifecycle.decide_update(schedule, _definition("* * * * *", HOUR), now=now).after
    assert changed.next_run_at == NOON + HOUR
    assert changed.due_at is not None
    assert changed.due_at < now + MINUTE


def test_schedules_that_are_created_at_one_instant_have_an_offset_each() -> None:
    assert not lifecycle.is_shared(_definition("@hourly", MINUTE))
    assert lifecycle.is_shared(definition("@hourly"))


def test_an_interval_from_completion_takes_no_spread() -> None:
    with pytest.raises(InvalidPolicyError, match="does not apply to a from_completion"):
        define(None, {"spread": "1m"}, workflow="report", spec=Every("1h", from_completion=True))


def test_a_schedule_without_a_spread_is_stored_as_before() -> None:
    assert "spread" not in definition().policies
    assert active().due_at == active().next_run_at
