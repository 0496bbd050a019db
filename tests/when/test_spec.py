"""Specs: intervals on their grid, mixtures, windows, anchors, JSON, and the refusals."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from typing import Any

import pytest

from rqsched.errors import (
    InvalidCronError,
    InvalidDurationError,
    InvalidSpecError,
    InvalidTimezoneError,
    NewerReleaseError,
)
from rqsched.when.spec import Cron, Every, Member, Once, Spec, SpecLike

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def clock(instants: Any) -> list[str]:
    return [instant.strftime("%H:%M") for instant in instants]


@pytest.mark.parametrize("every", [timedelta(minutes=30), "PT30M", "30m"], ids=repr)
def test_an_interval_is_a_timedelta_or_either_spelling(every: timedelta | str) -> None:
    assert Every(every) == Every("30m")


def test_an_anchored_interval_keeps_its_grid_whenever_it_is_asked() -> None:
    every = Every("45m", anchor=at("2026-01-01 00:10"))
    assert every.next_after(at("2026-01-01 00:10")) == at("2026-01-01 00:55")
    assert every.next_after(at("2026-01-01 05:00:00.000001")) == at("2026-01-01 05:25")
    assert every.next_after(at("2025-12-31 23:00")) == at("2025-12-31 23:25")


def test_an_aligned_interval_counts_from_the_epoch() -> None:
    assert Every("1h", offset="5m").next_after(NOON) == at("2026-01-01 12:05")
    assert Every("1h", offset=timedelta(0)).next_after(NOON + MINUTE) == at("2026-01-01 13:00")
    assert Every("7h", offset="PT0S").next_after(at("1969-12-31 20:00")) == at("1970-01-01 00:00")


def test_an_interval_without_an_anchor_counts_from_the_instant_asked_about() -> None:
    assert Every("30m").next_after(NOON + timedelta(microseconds=5)) == NOON + timedelta(minutes=30, microseconds=5)
    assert clock(Every("30m").between(NOON, NOON + HOUR)) == ["12:00", "12:30"]


def test_at_every_in_a_cron_is_an_anchored_interval() -> None:
    assert Cron("@EVERY 1h30m").next_after(NOON) == NOON + timedelta(minutes=90)
    assert Cron(" @every 45s ", anchor=NOON).next_after(NOON + MINUTE) == NOON + timedelta(seconds=90)


@pytest.mark.parametrize("length", ["0s", "500ms", "-1h", "1d", "P1M", "PT5M", "soon"])
def test_at_every_needs_hours_minutes_seconds_of_at_least_one_second(length: str) -> None:
    with pytest.raises(InvalidSpecError):
        Cron(f"@every {length}")


def test_an_interval_past_the_calendar_never_happens() -> None:
    assert Every(timedelta(days=900_000_000), anchor=NOON).next_after(NOON) is None
    assert Every("1h", anchor=NOON).next_after(datetime.max.replace(tzinfo=UTC)) is None


def test_once_happens_once() -> None:
    once = Once(datetime(2026, 1, 1, 14, tzinfo=timezone(2 * HOUR)))
    assert once.instant == NOON
    assert once.instant.tzinfo is UTC
    assert once.next_after(NOON - MINUTE) == NOON
    assert once.next_after(NOON) is None
    assert list(once.between(NOON, NOON + MINUTE)) == [NOON]
    assert list(once.between(NOON - MINUTE, NOON)) == []


def test_a_mixture_yields_every_instant_once_and_in_order() -> None:
    spec = Spec(["0 */2 * * *", Every("3h", offset="0s"), Once(at("2026-01-01 05:30")), Once(at("2026-01-01 06:00"))])
    assert clock(spec.between(at("2026-01-01 00:00"), at("2026-01-01 09:00"))) == [
        *("00:00", "02:00", "03:00", "04:00", "05:30", "06:00", "08:00"),
    ]


def test_between_is_lazy_includes_its_start_and_excludes_its_end() -> None:
    spec = Spec("0 * * * *")
    assert clock(spec.between(NOON, NOON + 2 * HOUR)) == ["12:00", "13:00"]
    assert clock(islice(spec.between(NOON, at("9000-01-01")), 2)) == ["12:00", "13:00"]
    assert list(spec.between(NOON, NOON)) == list(spec.between(NOON + HOUR, NOON)) == []


def test_a_cron_is_read_in_its_own_timezone_else_in_the_spec_s() -> None:
    spec = Spec([Cron("0 9 * * *"), Cron("0 9 * * *", timezone="Asia/Tokyo")], timezone="America/New_York")
    assert clock(spec.between(at("2026-01-05"), at("2026-01-06"))) == ["00:00", "14:00"]


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    spec = Spec("0 * * * *", start_at=NOON, end_at=NOON + 2 * HOUR)
    assert spec.next_after(at("2020-01-01")) == NOON
    assert spec.next_after(NOON) == NOON + HOUR
    assert spec.next_after(NOON + HOUR) is None
    assert clock(spec.between(at("2026-01-01"), at("2026-01-02"))) == ["12:00", "13:00"]
    assert spec.last_between(at("2026-01-01"), at("2026-01-02"), 9) == [NOON, NOON + HOUR]
    assert spec.count_between(at("2026-01-01"), at("2026-01-02")) == (2, False)


def test_instants_of_any_zone_are_answered_in_utc() -> None:
    tokyo = timezone(9 * HOUR)
    following = Spec("0 * * * *").next_after(datetime(2026, 1, 1, 21, 30, tzinfo=tokyo))
    assert following == at("2026-01-01 13:00")
    assert following.tzinfo is UTC


REFUSED = {
    "empty": lambda: Spec([]),
    "no-member": lambda: Spec([5]),  # type: ignore[list-item]
    "none": lambda: Spec(None),  # type: ignore[arg-type]
    "naive-once": lambda: Once(datetime(2026, 1, 1)),  # noqa: DTZ001
    "once-of-text": lambda: Once("2026-01-01T00:00:00Z"),  # type: ignore[arg-type]
    "naive-start": lambda: Spec("@daily", start_at=datetime(2026, 1, 1)),  # noqa: DTZ001
    "naive-anchor": lambda: Every("1h", anchor=datetime(2026, 1, 1)),  # noqa: DTZ001
    "naive-question": lambda: Spec("@daily").next_after(datetime(2026, 1, 1)),  # noqa: DTZ001
    "outside-the-calendar": lambda: Spec("@daily").next_after(datetime.max.replace(tzinfo=timezone(-HOUR))),
    "naive-range": lambda: Cron("@daily").between(NOON, datetime(2026, 1, 1)),  # noqa: DTZ001
    "start-is-end": lambda: Spec("@daily", start_at=NOON, end_at=NOON),
    "start-after-end": lambda: Spec("@daily", start_at=NOON, end_at=NOON - HOUR),
    "offset-and-anchor": lambda: Every("1h", offset="5m", anchor=NOON),
    "zero-offset-and-anchor": lambda: Every("1h", offset="0s", anchor=NOON),
    "offset-too-long": lambda: Every("1h", offset="1h"),
    "offset-negative": lambda: Every("1h", offset=timedelta(seconds=-1)),
    "completion-with-offset": lambda: Every("1h", offset="5m", from_completion=True),
    "completion-with-anchor": lambda: Every("1h", anchor=NOON, from_completion=True),
    "completion-in-company": lambda: Spec([Every("1h", from_completion=True), Cron("@daily")]),
    "anchored-cron": lambda: Cron("@daily", anchor=NOON),
    "two-timezones": lambda: Spec.coerce(Spec("@daily", "Asia/Tokyo"), "Europe/Berlin"),
}


@pytest.mark.parametrize("build", REFUSED.values(), ids=REFUSED)
def test_a_spec_with_contradicting_parts_is_refused(build: Any) -> None:
    with pytest.raises(InvalidSpecError):
        build()


def test_each_kind_of_mistake_has_its_own_error() -> None:
    with pytest.raises(InvalidDurationError):
        Every(timedelta(milliseconds=999))
    with pytest.raises(InvalidTimezoneError):
        Spec("@daily", timezone="EST")
    with pytest.raises(InvalidTimezoneError):
        Cron("@daily", timezone="+05:00")
    with pytest.raises(InvalidCronError):
        Spec(["* * *"])


def test_registration_anchors_what_waits_for_it_and_nothing_else() -> None:
    earlier = at("2025-06-01")
    spec = Spec([Cron("@every 5m"), Cron("@daily"), Every("1h"), Every("2h", offset="0s"), Every("3h", anchor=earlier)])
    anchored = spec.anchored_at(NOON)
    assert not spec.is_anchored
    assert anchored.is_anchored
    assert anchored.anchored_at(earlier) == anchored
    assert set(anchored.members) == {
        Cron("@every 5m", anchor=NOON),
        Cron("@daily"),
        Every("1h", anchor=NOON),
        Every("2h", offset="0s"),
        Every("3h", anchor=earlier),
    }


def test_the_same_timing_declared_again_keeps_its_anchor() -> None:
    registered = Spec([Every("1h"), Cron("@every 5m")]).anchored_at(NOON)
    assert Spec([Cron("@every 5m"), Every("60m")]).anchored_like(registered) is registered
    changed = Spec([Every("2h"), Cron("@every 5m")])
    assert changed.anchored_like(registered) is changed


def test_from_completion_counts_from_the_instant_asked_about() -> None:
    spec = Spec(Every("10m", from_completion=True))
    assert spec.is_from_completion
    assert spec.anchored_at(NOON - HOUR) == spec
    assert spec.next_after(NOON) == NOON + 10 * MINUTE
    assert not Spec("@daily").is_from_completion


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (Spec(Every("1s", offset="0s")), (86_400, False)),
        (Spec(Every("7m", anchor=NOON)), (205, False)),
        (Spec("0 * * * *"), (24, False)),
        (Spec("* * * * *"), (1440, False)),
        (Spec(["* * * * *", "30 12 * * *"]), (1000, True)),
        (Spec(["*/2 * * * *", "*/3 * * * *"]), (960, False)),
        (Spec(["0 * * * *", Every("30m", offset="0s")]), (48, False)),
        (Spec(Once(NOON)), (1, False)),
        (Spec(Every("1s", offset="0s"), start_at=NOON), (43_201, False)),
        (Spec(Every("1s", offset="0s"), end_at=at("2026-01-01 00:00:10")), (9, False)),
        (Spec(Every("1s", offset="0s"), start_at=at("2027-01-01")), (0, False)),
    ],
    ids=lambda value: value.describe() if isinstance(value, Spec) else "",
)
def test_occurrences_are_counted_by_arithmetic_or_up_to_a_cap(spec: Spec, count: tuple[int, bool]) -> None:
    assert spec.count_between(at("2026-01-01"), at("2026-01-02")) == count


def test_a_range_that_ends_before_it_begins_holds_nothing() -> None:
    for spec in (Spec(Every("1s", offset="0s")), Spec("* * * * *")):
        assert spec.count_between(NOON, NOON - HOUR) == (0, False)
        assert spec.last_between(NOON, NOON - HOUR, 5) == []


def test_the_newest_occurrences_are_found_without_walking_the_older() -> None:
    spec = Spec(["* * * * *", Every("30s", offset="0s"), Once(NOON - timedelta(seconds=10))])
    newest = spec.last_between(at("1990-01-01"), NOON, 4)
    assert [instant.strftime("%M:%S") for instant in newest] == ["59:00", "59:30", "59:50", "00:00"]
    assert Spec("@hourly").last_between(NOON - HOUR, NOON, 9) == [NOON]


def test_a_count_and_the_newest_agree_with_the_range() -> None:
    spec = Spec(["*/7 * * * *", Every("11m", anchor=NOON)], "America/New_York")
    end = NOON + timedelta(hours=9)
    listed = [instant for instant in spec.between(NOON, end + MINUTE) if NOON < instant <= end]
    assert spec.last_between(NOON, end, 1000) == listed
    assert spec.count_between(NOON, end).total == len(listed)


JSON_FORMS: dict[str, tuple[Spec, dict[str, Any]]] = {
    "cron": (
        Spec("0 2 * * *", "America/New_York"),
        {"cron_expressions": ["0 2 * * *"], "timezone": "America/New_York"},
    ),
    "aligned": (Spec(Every("30m", offset="0s")), {"intervals": [{"every": "PT30M"}], "timezone": "UTC"}),
    "offset": (
        Spec(Every("1h", offset="5m")),
        {"intervals": [{"every": "PT1H", "offset": "PT5M"}], "timezone": "UTC"},
    ),
    "unanchored": (Spec(Every("30m")), {"intervals": [{"every": "PT30M", "anchor": None}], "timezone": "UTC"}),
    "anchored": (
        Spec(Every("30m", anchor=NOON)),
        {"intervals": [{"every": "PT30M", "anchor": "2026-01-01T12:00:00Z"}], "timezone": "UTC"},
    ),
    "completion": (
        Spec(Every("30m", from_completion=True)),
        {"intervals": [{"every": "PT30M", "from_completion": True}], "timezone": "UTC"},
    ),
    "own-timezone": (
        Spec([Cron("@daily", "Asia/Tokyo"), Cron("@hourly")]),
        {
            "cron_expressions": ["@hourly"],
            "crons": [{"expression": "@daily", "timezone": "Asia/Tokyo"}],
            "timezone": "UTC",
        },
    ),
    "at-every": (
        Spec(Cron("@every 5m")).anchored_at(NOON + timedelta(microseconds=5)),
        {"crons": [{"expression": "@every 5m", "anchor": "2026-01-01T12:00:00.000005Z"}], "timezone": "UTC"},
    ),
    "once-in-a-window": (
        Spec(Once(NOON), start_at=NOON, end_at=NOON + HOUR),
        {
            "instants": ["2026-01-01T12:00:00Z"],
            "timezone": "UTC",
            "start_at": "2026-01-01T12:00:00Z",
            "end_at": "2026-01-01T13:00:00Z",
        },
    ),
}


@pytest.mark.parametrize(("spec", "form"), JSON_FORMS.values(), ids=JSON_FORMS)
def test_a_spec_survives_json(spec: Spec, form: dict[str, Any]) -> None:
    assert spec.to_json() == form
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(Spec.from_json(form)) == hash(spec)


def test_the_durable_workflow_form_is_read_as_it_means_it() -> None:
    form = {"cron_expressions": ["0 12 * * *"], "intervals": [{"every": "PT6H", "offset": None}]}
    spec = Spec.from_json(form | {"timezone": "America/Chicago"})
    assert clock(spec.between(at("2026-01-01"), at("2026-01-02"))) == ["00:00", "06:00", "12:00", "18:00"]
    assert Spec.coerce({"cron_expressions": ["@daily"], "intervals": None}, "Asia/Tokyo") == Spec(
        "@daily", "Asia/Tokyo"
    )


BAD_FORMS: dict[str, Any] = {
    "empty": {},
    "nothing": {"cron_expressions": []},
    "unknown-key": {"cron": "@daily"},
    "text-for-list": {"cron_expressions": "@daily"},
    "cron-no-text": {"cron_expressions": [5]},
    "interval-no-object": {"intervals": ["PT5M"]},
    "interval-without-every": {"intervals": [{"offset": "PT5M"}]},
    "interval-unknown-key": {"intervals": [{"every": "PT5M", "phase": "PT1M"}]},
    "interval-number": {"intervals": [{"every": 300}]},
    "offset-number": {"intervals": [{"every": "PT5M", "offset": 5}]},
    "offset-zero-number": {"intervals": [{"every": "PT5M", "offset": 0}]},
    "completion-text": {"intervals": [{"every": "PT5M", "from_completion": "false"}]},
    "months": {"intervals": [{"every": "P1M"}]},
    "naive-instant": {"instants": ["2026-01-01T00:00:00"]},
    "no-instant": {"instants": ["tomorrow"]},
    "instant-number": {"instants": [0]},
    "bad-window": {"cron_expressions": ["@daily"], "start_at": "soon"},
    "bad-timezone": {"cron_expressions": ["@daily"], "timezone": 5},
    "cron-object-without-expression": {"crons": [{"timezone": "UTC"}]},
    "no-object": [("cron_expressions", ["@daily"])],
}


@pytest.mark.parametrize("form", BAD_FORMS.values(), ids=BAD_FORMS)
def test_a_malformed_form_is_refused(form: Any) -> None:
    with pytest.raises(InvalidSpecError):
        Spec.from_json(form)


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ("@daily", Spec([Cron("@daily")])),
        (Cron("@daily"), Spec([Cron("@daily")])),
        (Cron("@daily", "Asia/Tokyo"), Spec([Cron("@daily")], "Asia/Tokyo")),
        (Every("5m"), Spec([Every("5m")])),
        (timedelta(minutes=5), Spec([Every("5m")])),
        (Once(NOON), Spec([Once(NOON)])),
        (["@daily", timedelta(minutes=5)], Spec([Cron("@daily"), Every("5m")])),
        (Spec("@daily"), Spec("@daily")),
        ({"cron_expressions": ["@daily"]}, Spec("@daily")),
    ],
    ids=["text", "cron", "zoned-cron", "every", "timedelta", "once", "list", "spec", "form"],
)
def test_everything_that_says_when_becomes_a_spec(value: Any, spec: Spec) -> None:
    assert Spec.coerce(value) == spec


def test_the_timezone_given_applies_where_none_was_named() -> None:
    assert Spec.coerce("@daily", "Asia/Tokyo") == Spec("@daily", "Asia/Tokyo")
    assert Spec.coerce(Spec("@daily"), "Asia/Tokyo") == Spec("@daily", "Asia/Tokyo")
    assert Spec.coerce(Cron("@daily", "Asia/Tokyo"), "Europe/Berlin").next_after(NOON) == at("2026-01-01 15:00")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec("0 2 * * *", "America/New_York"), "cron 0 2 * * * America/New_York"),
        (Spec(Every("30m")), "every 30m"),
        (Spec(Every("24h", offset="5m")), "every 24h offset 5m"),
        (Spec(Cron("@every 10s")), "every 10s"),
        (Spec(Once(NOON)), "once 2026-01-01T12:00:00Z"),
        (Spec(["@daily", Every("30s", offset="0s")]), "cron @daily UTC; every 30s"),
        (Spec(Every("5m", from_completion=True)), "every 5m after completion"),
        (Spec("@daily", end_at=NOON), "cron @daily UTC until 2026-01-01T12:00:00Z"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_spec_describes_itself(spec: Spec, text: str) -> None:
    assert spec.describe() == text


def test_the_primary_cron_is_the_first() -> None:
    assert Spec([Every("5m"), Cron("@daily"), Cron("@hourly")]).primary_cron == "@daily"
    assert Spec(Every("5m")).primary_cron is None


def test_gaps_respect_the_window_and_the_limit() -> None:
    first, last, gap = at("2026-03-07"), at("2026-03-10"), at("2026-03-08 07:30")
    crons = [Cron("30 2 * * *"), Cron("0,15 2 * * *"), Cron("30 1 * * *", "Asia/Tokyo")]
    spec = Spec(crons, "America/New_York")
    assert clock(g.occurrence_at for g in spec.gaps_between(first, last)) == ["07:00", "07:15", "07:30"]
    assert len(spec.gaps_between(first, last, limit=2)) == 2
    assert Spec(crons[0], "America/New_York", end_at=gap).gaps_between(first, last) == []
    assert len(Spec(crons[0], "America/New_York", start_at=gap).gaps_between(first, last)) == 1


def test_equal_specs_are_one_key() -> None:
    assert len({Spec("@daily"), Spec([Cron("@daily")]), Spec(["@daily", "@daily"]), Spec("@hourly")}) == 2


def test_a_stored_spec_with_keys_of_a_newer_release_can_be_shown_and_neither_evaluated_nor_written() -> None:
    spec = Spec([Cron("0 2 * * *", "Europe/Berlin"), Every("30m", offset="5m")], timezone="UTC")
    stored = spec.to_json()
    newer = stored | {"calendar": "business"}
    newer["crons"] = [cron | {"except": "holidays"} for cron in stored.get("crons", [])]
    newer["intervals"] = [interval | {"except": "holidays"} for interval in stored["intervals"]]
    found = Spec.from_stored(newer)
    assert (found.members, found.newer) == (spec.members, "spec: unknown key 'calendar'")
    assert found.describe() == spec.describe() + "; of a newer release (spec: unknown key 'calendar')"
    asks: list[Callable[[Spec], object]] = [
        lambda one: one.next_after(NOON), lambda one: one.between(NOON, NOON),
        lambda one: one.last_between(NOON, NOON, 1),
        lambda one: one.count_between(NOON, NOON), lambda one: one.gaps_between(NOON, NOON), Spec.to_json,
    ]  # fmt: skip
    for ask in asks:
        for one in (found, replace(found, timezone="Europe/Berlin"), found.anchored_at(NOON)):
            with pytest.raises(NewerReleaseError, match="unknown key 'calendar'"):
                ask(one)
    with pytest.raises(InvalidSpecError, match="unknown key 'calendar'"):
        Spec.from_json(newer)


STANDS_FOR = {
    "a length": ("10m", Every("10m")),
    "days": ("30d", Every(timedelta(days=30))),
    "an ISO length": ("PT10M", Every("10m")),
    "a timedelta": (timedelta(minutes=10), Every("10m")),
    "a cron": ("0 2 * * *", Cron("0 2 * * *")),
    "an alias": ("@every 10m", Cron("@every 10m")),
    "an aware datetime": (NOON, Once(NOON)),
    "an instant": ("2026-01-01T12:00:00Z", Once(NOON)),
    "an instant in another zone": ("2026-01-01 13:00+01:00", Once(NOON)),
}


@pytest.mark.parametrize(("value", "member"), STANDS_FOR.values(), ids=STANDS_FOR)
def test_a_plain_value_stands_for_a_member(value: SpecLike, member: Member) -> None:
    assert Spec.coerce(value) == Spec.coerce([value, member]) == Spec(member)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("P1M", InvalidDurationError),
        ("0s", InvalidDurationError),
        ("10m extra", InvalidDurationError),
        ("2026-01-01", InvalidSpecError),
        ("2026-01-01T12:00:00", InvalidSpecError),
        ("2026-13-01T12:00:00Z", InvalidSpecError),
        (NOON.replace(tzinfo=None), InvalidSpecError),
        (60, InvalidSpecError),
        ("soon", InvalidCronError),
    ],
    ids=str,
)
def test_a_plain_value_that_stands_for_nothing_is_refused(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Spec.coerce(value)


def test_seconds_that_come_last_are_put_first() -> None:
    assert Cron("0 9 * * MON 30", seconds="last") == Cron("30 0 9 * * MON", seconds="first")
    assert Cron("0 9 * * MON", seconds="last") == Cron("0 9 * * MON"), "five fields have none"
    assert Spec.from_json({"crons": [{"expression": "0 9 * * * 30", "seconds": "last"}]}) == Spec(
        Cron("30 0 9 * * *", seconds="first")
    )
    with pytest.raises(InvalidCronError):
        Cron("30 0 9 * * MON", seconds="last")
    for place in ("middle", 1):
        with pytest.raises(InvalidSpecError, match="seconds"):
            Cron("0 9 * * *", seconds=place)  # type: ignore[arg-type]


def test_six_fields_that_would_mean_something_else_with_seconds_last_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="seconds='first'"):
        Cron("0 0 9 * * *")


def test_six_fields_that_say_their_order_or_mean_one_thing_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cron("* * * * * *")
        Cron("0 30 9 * * *")  # there is no hour 30
        Cron("0 0 9 * * *", seconds="first")
        Cron("0 0 9 * * *", seconds="last")
        stored = Spec(Cron("0 0 9 * * *", "Asia/Tokyo", seconds="first"))
        assert Spec.from_stored(stored.to_json()) == stored
        assert Spec.coerce(stored.members[0]).timezone == "Asia/Tokyo"
