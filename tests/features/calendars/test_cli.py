"""`rqsched calendar`: its output for people and programs, and the files of other tools that it reads."""

from __future__ import annotations

import re
import tracemalloc
from datetime import date, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from rqsched import Cron
from rqsched.errors import CalendarInUseError, InvalidInputError
from rqsched.features.calendars import sources as calendar_sources
from rqsched.features.calendars.sources import FoundDays, public_holidays, read_icalendar
from rqsched.kernel.store import tables
from tests.support.cli import HELLO, Cli

TODAY = date(2026, 1, 15)


def ics(*events: str) -> bytes:
    """An iCalendar file of these events, given without their uids."""
    inner = "".join(f"BEGIN:VEVENT\r\nUID:{number}\r\n{event}\r\nEND:VEVENT\r\n" for number, event in enumerate(events))
    return f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test//\r\n{inner}END:VCALENDAR\r\n".encode()


def event(*lines: str) -> str:
    return "\r\n".join(lines)


def test_calendar_is_set_shown_listed_and_deleted(cli: Cli) -> None:
    assert "revision 1: 2026-12-25, Sat, Sun." in cli(
        "calendar", "set", "holidays", "--exclude", "2026-12-25", "--exclude", "Sat, Sun", "--reason", "closed"
    ).out  # fmt: skip
    cli.scheduler.create("nightly", HELLO, Cron("0 9 * * *"), exclude="holidays")

    assert "holidays" in cli("calendar", "list").out
    (listed,) = cli("calendar", "list", "-o", "jsonl").lines
    assert (listed["name"], listed["used_by"], listed["shared"]) == ("holidays", 1, False)
    shown = cli("calendar", "show", "holidays").out
    assert "nightly" in shown
    assert "+2 -0 closed" in shown
    told = cli("calendar", "show", "holidays", "-o", "json").json
    assert told["used_by"] == [{"namespace": "default", "schedule_id": "nightly"}]
    assert "nightly" in cli("calendar", "delete", "holidays", code=CalendarInUseError.exit_code).err
    assert "date, a range" in cli("calendar", "set", "holidays", "--exclude", "25.12.", code=2).err
    again = cli("calendar", "set", "holidays", "--exclude", "2026-12-25", "--revision", "7", code=4)
    assert "at revision 1, not 7" in again.err
    assert "--exclude: is missing" in cli("calendar", "set", "holidays", "--description", "ours", code=2).err
    cli.scheduler.get("nightly").delete()
    assert cli("calendar", "delete", "holidays").out == "Deleted calendar holidays.\n"
    assert "no calendar" in cli("calendar", "show", "holidays", code=3).err


def test_import_of_a_file_says_until_when_it_reaches_and_what_it_left_out(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "closed\x1b[31m.ics"
    year = date.today().year  # noqa: DTZ011 - the command's own clock is the host's
    file.write_bytes(
        ics(
            event(f"DTSTART;VALUE=DATE:{year}1224", f"DTEND;VALUE=DATE:{year}1227", "RRULE:FREQ=YEARLY"),
            event(f"DTSTART:{year}0301T100000Z", "SUMMARY:lunch"),
        )
    )
    preview = cli("calendar", "import", "closed", "--ics", str(file), "--dry-run")
    assert "Left out: 1 event." in preview.out
    assert f"{year}-03-01T10:00:00+00:00 lunch (a time of day)" in preview.out
    left_out = [{"summary": "lunch", "starts": f"{year}-03-01T10:00:00+00:00", "why": "a time of day"}]
    words = ("calendar", "import", "closed", "--ics", str(file), "-o", "json")
    assert cli(*words, "--dry-run").json["left_out"] == left_out
    assert "and recurrences go on" in preview.out
    assert cli.scheduler.calendars.list() == []

    assert cli(*words).json["left_out"] == left_out

    calendar = cli.scheduler.calendars.get("closed")
    assert f"{year}-12-24/{year}-12-26" in calendar.exclude
    assert calendar.reaches is not None
    assert "\x1b" not in cli("calendar", "show", "closed").out


def test_import_of_public_holidays_replaces_what_the_calendar_held(cli: Cli) -> None:
    cli("calendar", "set", "holidays", "--exclude", "2026-03-03")

    cli("calendar", "import", "holidays", "--country", "DE", "--subdivision", "BY", "--years", "2026-2027")

    calendar = cli.scheduler.calendars.get("holidays")
    assert {"2026-01-06", "2026-12-25/2026-12-26", "2027-01-01"} <= {*calendar.exclude}
    assert "2026-03-03" not in calendar.exclude
    assert (calendar.reaches, calendar.source) == (date(2027, 12, 31), "public holidays DE-BY 2026-2027")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--country", "XX"], "'XX' is not known"),
        (["--country", "DE", "--subdivision", "QQ"], "those of DE are"),
        (["--country", "DE", "--years", "many"], "write 2027 or 2027-2029"),
        (["--country", "DE", "--years", "1-4000"], "must be 1 to 50 years"),
        ([], "give one of them"),
        (["--ics", "/none/such"], "cannot be read"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_what_to_write(cli: Cli, words: list[str], told: str) -> None:
    assert told in cli("calendar", "import", "holidays", *words, code=2).err
    assert cli.scheduler.calendars.list() == []


def test_whole_days_are_taken_with_their_recurrences_and_exceptions() -> None:
    found = read_icalendar(
        ics(
            event("DTSTART;VALUE=DATE:20260501"),
            event("DTSTART;VALUE=DATE:20260601", "DURATION:P3D"),
            event(
                "DTSTART;VALUE=DATE:20260706",
                "RRULE:FREQ=WEEKLY;COUNT=3",
                "EXDATE;VALUE=DATE:20260713",
            ),
            event("DTSTART;VALUE=DATE:20260801", "STATUS:CANCELLED"),
            event("DTSTART;VALUE=DATE:20260802", "RRULE:FREQ=HOURLY", "SUMMARY:watch"),
            event("SUMMARY:no start"),
            event("DTSTART;VALUE=DATE:20200101"),
            event("DTSTART;TZID=Nowhere/Wrong:20260901T100000", "SUMMARY:timed"),
        ),
        TODAY,
    )

    assert found == FoundDays(
        ("2026-05-01", "2026-06-01/2026-06-03", "2026-07-06", "2026-07-20"), date(2026, 7, 20), found.left_out
    )
    assert [(one.summary, one.starts[:10], one.why) for one in found.left_out] == [
        ("", "2026-08-01", "cancelled"),
        ("watch", "2026-08-02", "repeats within a day"),
        ("no start", "", "no start"),
        ("timed", "2026-09-01", "a time of day"),
    ]


def test_endless_recurrences_end_at_the_horizon_and_say_so() -> None:
    found = read_icalendar(ics(event("DTSTART;VALUE=DATE:19000101", "RRULE:FREQ=YEARLY")), TODAY, date(2028, 6, 1))

    assert found == FoundDays(("2025-01-01", "2026-01-01", "2027-01-01", "2028-01-01"), date(2028, 6, 1), is_cut=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "is not iCalendar"),
        (b"\xff\xfe\x00\x1b[31m", "is not iCalendar"),
        (b"<html></html>", "is not iCalendar"),
        (ics(), "holds no whole day"),
        (ics(event("DTSTART:20260301T100000Z")), "1 of its 1 events are left out: a time of day"),
        (ics(event("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=SECONDLY")), "holds no whole day"),
        (ics(event("SUMMARY:no start")), "holds no whole day"),
    ],
    ids=range(7),
)
def test_what_is_no_calendar_is_refused_without_its_controls(text: bytes, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told) as refused:
        read_icalendar(text, TODAY)
    assert str(refused.value).isprintable()


def test_too_much_is_refused_before_it_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="give at most 5242880"):
        read_icalendar(b" " * (calendar_sources.MAX_BYTES + 1), TODAY)
    monkeypatch.setattr(calendar_sources, "MAX_EVENTS", 2)
    with pytest.raises(InvalidInputError, match="more than 2 events"):
        read_icalendar(ics(*[event("DTSTART;VALUE=DATE:20260301")] * 3), TODAY)
    monkeypatch.setattr(calendar_sources, "MAX_OCCURRENCES", 100)
    with pytest.raises(InvalidInputError, match="recurs more than 100 times"):
        read_icalendar(ics(event("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=DAILY")), TODAY)
    with pytest.raises(InvalidInputError, match="within twenty years"):
        read_icalendar(ics(event("DTSTART;VALUE=DATE:20260301")), TODAY, date(3000, 1, 1))


@pytest.mark.parametrize(
    "events",
    [
        [event("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30")],
        [event("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;COUNT=3")],
        [event("DTSTART;VALUE=DATE:00010101", "RRULE:FREQ=DAILY;BYDAY=SU")] * 10,
        [event("DTSTART;VALUE=DATE:20260301", "DTEND;VALUE=DATE:99990101", "RRULE:FREQ=DAILY")],
    ],
    ids=["never matches", "never matches its count", "from the year 1", "lasts to the end of all years"],
)
def test_recurrences_take_few_steps_however_their_events_are_written(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendar_sources, "MAX_STEPS", 50_000)

    assert read_icalendar(ics(*events), TODAY).exclude


def test_too_many_steps_are_refused_with_the_event_that_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    far = event("SUMMARY:far away", "DTSTART;VALUE=DATE:00010101", "RRULE:FREQ=DAILY;COUNT=999999")
    monkeypatch.setattr(calendar_sources, "MAX_STEPS", 10_000)
    with pytest.raises(InvalidInputError, match=r"more than 10000 steps.*'far away' of 0001-01-01"):
        read_icalendar(ics(event("DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=YEARLY"), far), TODAY)


@pytest.mark.parametrize(
    "line",
    [
        "DTSTART;VALUE=DATE;TZID=Asia/Tokyo:20270101",
        "DTSTART;TZID=Asia/Tokyo;VALUE=DATE:20270101",
        'DTSTART;value=date;tzid="Asia/Tokyo: Tokyo":20270101',
        "DTSTART;TZID=Asia/Tokyo:20270101",
        "DTSTART;VALUE=DATE;TZID=Asia/\r\n Tokyo:20270101",
    ],
)
def test_whole_day_has_no_time_zone_whatever_its_file_says(line: str) -> None:
    last = "DTEND;VALUE=DATE;TZID=Asia/Tokyo:20270103"
    rule = event("RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE;TZID=Asia/Tokyo:20280101")

    found = read_icalendar(ics(event(line, last, rule)), TODAY, date(2029, 6, 1))

    assert found == FoundDays(("2027-01-01/2027-01-02", "2029-01-01/2029-01-02"), date(2029, 6, 1), is_cut=True)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["DTSTART;VALUE=DATE:2027010x"], "DTSTART: Wrong date format"),
        (["DTSTART;VALUE=DATE:20270230"], "DTSTART: Wrong date format"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE:FREQ=FOO"], "RRULE: Expected frequency"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE FREQ=YEARLY"], "could not be parsed"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE:FREQ=DAILY;UNTIL=soon"], "RRULE: Expected date"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE:FREQ=DAILY;INTERVAL=0"], "INTERVAL 0 is not positive"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE:FREQ=YEARLY;BYMONTHDAY=" + "1," * 1_000 + "2"], "more than 1000"),
        (["DTSTART;VALUE=DATE:20270105", "RRULE:FREQ=YEARLY;BYWHIM=1"], "BYWHIM"),
        (["DTSTART;VALUE=DATE:20270105", "EXDATE;VALUE=DATE:2027"], "EXDATE"),
        (["DTSTART;VALUE=DATE:20270105", "SEQUENCE:x"], "SEQUENCE"),
        (["DTSTART;VALUE=DATE:20270105", "DTEND:20270107T000000Z"], "DTEND is a time of day"),
        (["DTSTART;VALUE=DATE:20270105", "DURATION:PT36H"], "DURATION is not of whole days"),
        (["DTSTART;VALUE=DATE:99991231"], "out of range"),
        (["DTSTART;VALUE=DATE:20270105", "BEGIN:VALARM"], "it has no END:VEVENT|no components"),
        (["DTSTART;VALUE=DATE:20270105", "DTSTART;VALUE=DATE:20270106"], "no start"),
    ],
)
def test_event_that_cannot_be_read_is_left_out_and_named_and_keeps_no_other_out(lines: list[str], why: str) -> None:
    good = event("DTSTART;VALUE=DATE:20270301")

    found = read_icalendar(ics(good, event("SUMMARY:odd one", *lines), good), TODAY)

    assert found.exclude == ("2027-03-01",)
    (left_out,) = found.left_out
    assert left_out.summary in {"odd one", ""}
    assert re.search(why, left_out.why)
    with pytest.raises(InvalidInputError, match="1 of its 1 events are left out") as refused:
        read_icalendar(ics(event("SUMMARY:odd one", *lines)), TODAY)
    assert re.search(why, str(refused.value))


def test_file_that_is_cut_off_is_refused() -> None:
    whole = ics(event("DTSTART;VALUE=DATE:20270301"), event("DTSTART;VALUE=DATE:20270401"))
    for length in (len(whole) - 8, len(whole) - 30, len(whole) // 2):
        with pytest.raises(InvalidInputError, match=r"is not iCalendar .its end is missing"):
            read_icalendar(whole[:length], TODAY)


def test_occurrence_is_moved_alone_or_with_those_that_follow() -> None:
    weekly = "DTSTART;VALUE=DATE:20260302\r\nRRULE:FREQ=WEEKLY;COUNT=5"
    text = ics(
        weekly,
        event("RECURRENCE-ID;VALUE=DATE:20260309", "DTSTART;VALUE=DATE:20260310"),
        event("RECURRENCE-ID;RANGE=THISANDFUTURE;VALUE=DATE:20260323", "DTSTART;VALUE=DATE:20260325"),
        event("RECURRENCE-ID;VALUE=DATE:20260316", "DTSTART;VALUE=DATE:20260317", "SEQUENCE:1"),
        event("RECURRENCE-ID;VALUE=DATE:20260316", "DTSTART;VALUE=DATE:20260318"),
    )
    for number in range(1, 5):
        text = text.replace(f"UID:{number}".encode(), b"UID:0")

    found = read_icalendar(text, TODAY)

    assert found.exclude == ("2026-03-02", "2026-03-10", "2026-03-17", "2026-03-25", "2026-04-01")


def test_events_that_recur_too_often_are_refused_before_all_of_them_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calendar_sources, "MAX_OCCURRENCES", 100)
    endless = event("DTSTART;VALUE=DATE:20250101", "RRULE:FREQ=DAILY")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="recurs more than 100 times"):
            read_icalendar(ics(*[endless] * 40), TODAY)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_parts_in_which_recurrences_are_followed_lose_and_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = ics(
        event("DTSTART;VALUE=DATE:20260302", "DTEND;VALUE=DATE:20260320"),
        event("DTSTART;VALUE=DATE:20260330", "RRULE:FREQ=WEEKLY;COUNT=9"),
        event("DTSTART;VALUE=DATE:20260401", "RRULE:FREQ=DAILY;BYHOUR=1,2,3"),
    )
    whole = read_icalendar(text, TODAY)
    monkeypatch.setattr(calendar_sources, "MAX_OCCURRENCES", 10)

    assert read_icalendar(text, TODAY) == whole
    assert (whole.exclude[0], len(whole.exclude), len(whole.left_out)) == ("2026-03-02/2026-03-19", 10, 1)


def test_public_holidays_of_a_region_are_those_of_its_years() -> None:
    found = public_holidays("DE", "BY", [2026])

    assert "2026-12-25/2026-12-26" in found.exclude
    assert (found.reaches, found.is_cut, found.left_out) == (date(2026, 12, 31), False, ())


def test_doctor_warns_before_a_calendar_in_use_ends(cli: Cli) -> None:
    soon = date.today() + timedelta(days=60)  # noqa: DTZ011 - as above
    cli.scheduler.calendars.set("holidays", ["2026-01-01"], reaches=soon)
    cli.scheduler.calendars.set("unused", ["2026-01-01"], reaches=soon)
    assert cli.findings(0)["calendars"]["level"] == "ok"

    cli.scheduler.create("nightly", HELLO, Cron("0 9 * * *"), exclude="holidays")

    found = cli.findings(1)["calendars"]
    assert (found["level"], found["detail"]) == (
        "warning", f"nothing is excluded any more after: holidays ends {soon}",
    )  # fmt: skip


def test_commands_show_a_schedule_whose_calendar_is_gone_and_doctor_says_so(cli: Cli, tmp_path: Path) -> None:
    cli.scheduler.calendars.set("holidays", ["2026-01-01"])
    cli.scheduler.create("nightly", HELLO, Cron("0 9 * * *"), exclude="holidays")
    cli.scheduler.runtime.database.transact(lambda connection: connection.execute(sa.delete(tables.calendars)))

    found = cli.findings(1)["calendars"]
    assert (found["level"], found["detail"]) == (
        "problem", "are gone, so that nothing fires: holidays, which default/nightly names",
    )  # fmt: skip
    for words in ("list", "describe nightly", "forecast load", "forecast simulate", "why nightly", "history nightly"):
        cli(*words.split())
    cli("pause", "nightly")
    cli("update", "nightly", "--unset", "exclude")
    cli("resume", "nightly")
    assert cli.findings(1)["calendars"]["level"] == "ok"


@pytest.mark.parametrize("form", ["toml", "yaml", "json"])
def test_file_of_schedules_has_the_calendars_that_they_name(cli: Cli, tmp_path: Path, form: str) -> None:
    cli.scheduler.calendars.set("holidays", ["2026-12-25", "Sun"], description="closed \x7f\U0001f384", reaches=TODAY)
    cli.scheduler.calendars.set("unused", ["Sat"])
    cli.scheduler.create("nightly", HELLO, Cron("0 9 * * *"), exclude=["holidays", "Sat"])
    file = tmp_path / f"schedules.{form}"
    cli("export", str(file))
    before = cli.scheduler.calendars.get("holidays")
    cli.scheduler.get("nightly").delete()
    cli.scheduler.calendars.delete("holidays")

    assert "Calendar holidays: created." in cli("sync", str(file)).out

    after = cli.scheduler.calendars.get("holidays")
    assert (after.exclude, after.description, after.reaches) == (before.exclude, before.description, before.reaches)
    assert cli.scheduler.get("nightly").state.spec.exclude == ("Sat", "holidays")
    assert "Calendar" not in cli("sync", str(file)).out
    cli.scheduler.calendars.set("holidays", ["2026-12-24"])
    assert "would be changed" in cli("sync", str(file), "--dry-run").out
    assert cli.scheduler.calendars.get("holidays").exclude == ("2026-12-24",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[calendars.holidays]\nexcludes = []", "did you mean exclude"),
        ("[calendars.Sat]\nexclude = []", "no day of the week"),
        ("[calendars.holidays]\nexclude = ['25.12.']", "calendars.holidays.exclude"),
        ("[calendars.holidays]\nexclude = []\nreaches = 'soon'", "is not a date"),
        ("[calendars.holidays]\nexclude = []\ndescription = 3", "must be text"),
        ("calendars = 3", "must be a table"),
    ],
)
def test_calendar_of_a_file_that_cannot_be_is_refused(cli: Cli, tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "schedules.toml"
    file.write_text("schedules = []\n" + text + "\n" if "[" in text[:1] else f"{text}\nschedules = []\n")
    assert told in cli("sync", str(file), code=2).err
    assert cli.scheduler.calendars.list() == []


def test_preview_of_a_backfill_says_that_it_goes_by_todays_calendars(cli: Cli) -> None:
    cli.scheduler.calendars.set("holidays", ["2026-03-03"])
    cli.scheduler.create("nightly", HELLO, Cron("0 9 * * *"), exclude="holidays")
    plain = cli.scheduler.create("plain", HELLO, Cron("0 9 * * *"))
    span = ["--start", "2026-03-02T00:00:00Z", "--end", "2026-03-05T00:00:00Z", "--dry-run"]

    told = cli("backfill", "nightly", *span).out

    assert "Calendars in their current state: holidays." in told
    assert "2026-03-03" not in told
    assert "calendars" not in cli("backfill", plain.schedule_id, *span).out


def test_preview_of_a_file_knows_the_calendars_that_it_would_set(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "schedules.toml"
    entry = (
        f'[[schedules]]\nschedule_id = "nightly"\nworkflow = "{HELLO}"\ncron = "0 9 * * *"\nexclude = ["holidays"]\n'
    )
    file.write_text(f'[calendars.holidays]\nexclude = ["Sun"]\n\n{entry}')

    out = cli("sync", str(file), "--dry-run").out
    assert "Calendar holidays: would be created." in out
    assert "1 created" in out
    assert "+ nightly" in cli("sync", str(file), "--diff", code=6).out
    assert cli.scheduler.calendars.list() == []
    assert cli.scheduler.list().items == []

    cli("sync", str(file))
    cli("sync", str(file), "--diff")
    file.write_text(f'[calendars.holidays]\nexclude = ["Sat"]\n\n{entry}')
    assert "Calendar holidays: would be changed." in cli("sync", str(file), "--diff", code=6).out

    file.write_text(entry.replace("holidays", "closings"))
    assert "no calendar of namespace" in cli("sync", str(file), "--dry-run", code=2).err
    cli.scheduler.calendars.set("closings", ["Mon"], shared=True)
    file.write_text(f'[calendars.closings]\nexclude = ["Sat"]\n\n{entry}')
    assert "is shared by all namespaces" in cli("sync", str(file), "--dry-run", code=2).err
