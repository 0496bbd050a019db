"""`H` in a cron field: a number of the schedule's own, within its range, the same each time, and spread evenly."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqsched import Cron, Every, Spec
from rqsched.errors import InvalidCronError, InvalidSpecError
from rqsched.when.cron import parse_cron
from rqsched.when.places import has_place, placed
from rqsched.when.spec import require_no_place
from rqsched.when.words import in_words

NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
RANGES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "monthday": (1, 28),
    "month": (1, 12),
    "weekday": (0, 6),
}
salts = st.from_regex(r"[a-z]{1,8}/[A-Za-z0-9][A-Za-z0-9._:-]{0,30}", fullmatch=True)


@given(salts, st.sampled_from(list(RANGES)))
def test_an_h_is_one_value_of_its_field(salt: str, name: str) -> None:
    place = list(RANGES).index(name)
    fields = ["H" if number == place else "*" for number in range(6)]
    low, high = RANGES[name]
    assert low <= int(placed(" ".join(fields), salt).split()[place]) <= high


@given(salts, st.integers(0, 59), st.integers(0, 59), st.integers(1, 70))
def test_an_h_of_a_range_with_a_step_stays_in_it_and_begins_within_the_first_step(
    salt: str, one: int, other: int, step: int
) -> None:
    first, last = min(one, other), max(one, other)
    minutes = [value // 60 for value in parse_cron(placed(f"H({first}-{last})/{step} * * * *", salt)).seconds_of_hour]
    assert first <= minutes[0] < first + step
    assert minutes == list(range(minutes[0], last + 1, step))


@given(
    salts,
    st.sampled_from(["H H * * *", "H H(0-7) * * *", "H/15 * * * *", "H H H * *", "H 4 * H MON-FRI", "H,5 H * * *"]),
)
def test_the_numbers_are_the_same_each_time_and_everything_else_is_as_written(salt: str, expression: str) -> None:
    numbers = placed(expression, salt)
    assert numbers == placed(expression.lower(), salt).upper()
    assert not has_place(numbers)
    parse_cron(numbers)
    for was, now in zip(expression.split(), numbers.split(), strict=True):
        assert "H" in was.replace("THU", "") or was == now


def test_the_values_of_many_schedules_are_spread_evenly_over_each_field() -> None:
    salts = [f"default/report:{number}" for number in range(6_000)]
    chosen = list(zip(*(placed("H H H H H H", salt).split() for salt in salts), strict=True))
    for values, (low, high) in zip(chosen, RANGES.values(), strict=True):
        counts = Counter(map(int, values))
        expected = len(salts) / (high - low + 1)
        assert set(counts) == set(range(low, high + 1))
        chi = sum((count - expected) ** 2 / expected for count in counts.values())
        assert chi < 2.5 * (high - low + 1)  # of 6 000 salts, which are always these


def test_the_fields_of_one_schedule_are_drawn_apart() -> None:
    pairs = [placed("H H * * * *", f"default/{number}").split()[:2] for number in range(600)]
    assert sum(second == minute for second, minute in pairs) < 30
    assert len({*map(tuple, pairs)}) > 500


def test_these_numbers_never_change() -> None:
    """Schedules store these numbers. Another hash would move each schedule that is declared again."""
    assert placed("H H H H H", "default/nightly") == "40 3 25 4 4"
    assert placed("H H(0-7) * * *", "default/nightly") == "40 3 * * *"
    assert placed("H/15 H/6 * * *", "acme/nightly") == "12-59/15 0-23/6 * * *"


def test_another_id_and_another_namespace_have_another_place() -> None:
    spec = Spec("H H * * *")
    shown = {spec.placed_for(*named).describe() for named in (("a", "b"), ("a", "c"), ("b", "b"), ("default", "b"))}
    assert len(shown) == 4


def test_a_placed_spec_fires_by_its_numbers_and_shows_what_was_written() -> None:
    spec = Spec(Cron("H H(0-7) * * MON-FRI"), "Europe/Berlin").placed_for("default", "nightly")
    assert spec.describe() == "cron H H(0-7) * * MON-FRI (40 3 * * MON-FRI) Europe/Berlin"
    assert in_words(spec) == "at 03:40, Monday to Friday, Berlin time"
    assert spec.next_after(NOW) == Spec("40 3 * * MON-FRI", "Europe/Berlin").next_after(NOW)
    assert spec.primary_cron == "40 3 * * MON-FRI"
    assert spec.in_numbers() == Spec("40 3 * * MON-FRI", "Europe/Berlin")


def test_a_placed_spec_survives_json_in_which_older_readers_find_numbers() -> None:
    spec = Spec([Cron("H H * * *"), Cron("0 12 * * *")], "Europe/Berlin").placed_for("default", "nightly")
    form = spec.to_json()
    assert form["crons"] == [{"expression": "40 3 * * *", "written": "H H * * *"}]
    assert Spec.from_json(form) == Spec.from_stored(form) == spec
    del form["crons"][0]["written"]
    assert Spec.from_stored(form).next_after(NOW) == spec.next_after(NOW)


def test_what_is_placed_once_more_gets_the_place_of_its_new_name() -> None:
    spec = Spec("H H * * *").placed_for("default", "nightly")
    assert spec.placed_for("default", "other") == Spec("H H * * *").placed_for("default", "other") != spec


def test_without_a_schedule_it_has_no_instants_and_says_what_to_do() -> None:
    spec = Spec(["H * * * *", Every("1h", offset="0s")])
    for timeline in (spec, Cron("H * * * *")):
        with pytest.raises(InvalidSpecError, match="needs a schedule's id for its H; name the schedule"):
            timeline.next_after(NOW)
    with pytest.raises(InvalidSpecError):
        list(islice(spec.between(NOW, NOW + timedelta(days=1)), 1))
    assert "at the times of H * * * *, with H computed from the id" in in_words(spec)
    assert Spec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("H(5-70) * * * *", "not a range of the minute"),
        ("H(9-5) * * * *", "not a range of the minute"),
        ("0 0 H(0-3) * *", "not a range of the day of month"),
        ("H(1) * * * *", "write H, H"),
        ("H/0 * * * *", "step of 0"),
        ("H(0-9/2 * * * *", "write H, H"),
        ("H* * * * *", "not a valid minute"),
        ("H-5 * * * *", "not a valid minute"),
        ("H * * *", "4 fields"),
        ("0 0 H(30-31) 2 *", "never fires"),
        ("H H(0-3) * * * * *", "7 fields"),
    ],
)
def test_what_is_no_h_is_refused_with_what_to_write(expression: str, says: str) -> None:
    with pytest.raises(InvalidCronError, match=says.replace("(", r"\(")):
        Cron(expression)


def test_a_place_that_never_fires_is_refused_for_that_schedule_alone() -> None:
    spec = Spec("0 0 H(29-31) 2 *")
    outcomes = Counter[str]()
    for number in range(40):
        try:
            outcomes[spec.placed_for("default", f"s{number}").primary_cron or ""] += 1
        except InvalidCronError:
            outcomes["refused"] += 1
    assert set(outcomes) == {"0 0 29 2 *", "refused"}


def test_numbers_without_an_h_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="written"):
        Spec.from_json({"crons": [{"expression": "5 * * * *", "written": "* * * * *"}]})
    with pytest.raises(InvalidSpecError):
        Cron("@every 1h", numbers="5 * * * *")


def test_names_of_days_and_months_have_no_place() -> None:
    for expression in ("0 0 * * THU", "0 0 * MAR THU,FRI", "@hourly", "@every 1h", "0 0 * * FRI#3"):
        assert not has_place(expression)
        assert not Spec(expression).has_places


def test_systems_that_know_no_h_refuse_it() -> None:
    with pytest.raises(InvalidCronError, match="name the value"):
        require_no_place(Spec("H * * * *"))
    assert require_no_place(Spec("5 * * * *")) == Spec("5 * * * *")
