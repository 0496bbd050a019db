"""The file of schedules: each format reads back unchanged, and describes the schedules completely."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rqsched import Cron, Every, Once, RetryPolicy, Spec
from rqsched.config import Settings
from rqsched.errors import ConfigError, InvalidInputError
from rqsched.features.declarations.schedule_file import Format, declaration_of, entry_of, read, text_of, tidied, untold
from rqsched.kernel.decide.ids import new_uid
from tests.support.env import Env, MakeEnv
from tests.support.sizes import sized

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
LENGTHS = st.sampled_from(["0s", "1s", "90s", "10m", "26h", "1d", "36h", "PT0.5S"]) | st.integers(1, 10**6)
INSTANTS = st.integers(1_900_000_000, 3_700_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
RETRIES = st.fixed_dictionaries(
    {},
    optional={
        "max_retries": st.integers(0, 5),
        "base": st.just("10s"),
        "factor": st.sampled_from([1, 2.0, 2.5]),
        "cap": st.just("1h"),
        "jitter": LENGTHS,
        "retry_on": st.sampled_from([[], ["OSError"], "OSError", ["timeout", "requests.*"]]),
        "give_up_on": st.just(["KeyError"]),
    },
)
WHEN: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {"cron": st.sampled_from(["0 2 * * *", "@daily", "@every 1h30m", ["* * * * *", "0 2 * * mon"]])},
        optional={"timezone": st.sampled_from(["UTC", "Europe/Berlin"]), "start_at": INSTANTS},
    ),
    st.fixed_dictionaries(
        {"interval": st.sampled_from(["10m", 600, "1d", ["10m", "25m"]])},
        optional={"offset": st.sampled_from(["0s", "5m"]), "end_at": INSTANTS, "cron": st.just("0 2 * * *")},
    ),
    st.fixed_dictionaries({"interval": st.just("1h")}, optional={"anchor": INSTANTS, "once": INSTANTS}),
    st.fixed_dictionaries({"cron": st.just("30 0 2 * * *"), "cron_seconds": st.sampled_from(["first", "last"])}),
    st.fixed_dictionaries({"interval": st.just("1h"), "from_completion": st.booleans()}),
    st.fixed_dictionaries({"once": INSTANTS | st.lists(INSTANTS, min_size=1, max_size=3)}),
    st.sampled_from(
        [
            {"spec": {"crons": [{"expression": "0 2 * * *", "timezone": "Asia/Tokyo"}], "timezone": "Europe/Berlin"}},
            {"spec": {"intervals": [{"every": "PT1H"}, {"every": "PT2H", "anchor": "2031-01-01T00:00:00Z"}]}},
        ]
    ),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "args": st.lists(JSON, max_size=3),
        "kwargs": OBJECTS,
        "memo": OBJECTS,
        "search_attributes": OBJECTS,
        "labels": st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=3),
        "queue": st.sampled_from(["high", "no", "1e3"]),
        "timeout": st.sampled_from([90, "10m", None]),
        "priority": st.integers(-3, 3),
        "start_within": st.sampled_from([timedelta(minutes=30), "PT90S", None]),
        "fire_within": st.sampled_from([timedelta(hours=2), "90m", 1.5, None]),
        "on_resume": st.sampled_from(["next", "once"]),
        "max_runs": st.integers(1, 3) | st.none(),
        "environments": st.lists(TEXTS.filter(bool), max_size=2),
        "retention": st.sampled_from(["90d", 1000, "90d 1000", "0"]),
        "retry": RETRIES,
        "target_retry": RETRIES,
        "fan_out": st.sampled_from(["any_failed", "never"]),
        "description": TEXTS,
        "owner": st.sampled_from(["ops", "1.0", "null"]),
        "on_failure": st.just("note"),
        "expect_success_within": st.sampled_from(["26h", "7d"]),
        "expect_duration": st.sampled_from(["20m", "PT90S"]),
        "notifications": st.fixed_dictionaries({}, optional={"heartbeat": st.just("https://example.com/p?a=b")}),
        "note": TEXTS,
        "paused": st.booleans(),
    },
)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,8}", fullmatch=True)
ENTRIES = st.lists(
    st.builds(
        lambda id_, when, options: {"schedule_id": id_, "workflow": "note", **when, **options}, NAMES, WHEN, OPTIONS
    ),
    max_size=4,
    unique_by=lambda entry: entry["schedule_id"],
)
FORMATS = list(Format)
SETTINGS = Settings(database_url="sqlite:///none.db", redis_url="redis://127.0.0.1:9/0")
REASONS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def through(entries: Any, form: Format, folder: Path) -> tuple[str, Any]:
    """Return the text of entries, and the entries read from it."""
    text, path = text_of(entries, form), folder / f"schedules.{form}"
    path.write_text(text, encoding="utf-8", newline="")
    return text, read(path).declarations


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=sized(40, 1000), deadline=None, derandomize=True, suppress_health_check=REASONS)
@given(entries=ENTRIES)
@example(entries=[{"schedule_id": "a", "workflow": "note", "once": datetime(2030, 1, 1, tzinfo=UTC), "args": [None]}])
def test_what_is_written_is_read_as_it_was(form: Format, entries: list[dict[str, Any]], tmp_path: Path) -> None:
    tidy = [tidied(entry, SETTINGS) for entry in entries]

    _, declared = through(tidy, form, tmp_path)

    wanted = {entry["schedule_id"]: declaration_of(entry) for entry in tidy}
    assert [one.schedule_id for one in declared] == sorted(wanted)
    assert {one.schedule_id: one for one in declared} == wanted


@settings(max_examples=sized(25, 500), deadline=None, derandomize=True, suppress_health_check=REASONS)
@given(entries=ENTRIES, form=st.sampled_from(FORMATS))
def test_schedules_of_a_file_elsewhere_write_the_same_file_and_a_sync_of_it_changes_nothing(
    env: Env, entries: list[dict[str, Any]], form: Format, tmp_path: Path
) -> None:
    here, there = new_uid(env.clock.now()), new_uid(env.clock.now())
    given = []
    for entry in entries:
        with suppress(InvalidInputError):  # options that contradict each other
            env.scheduler.sync([declaration_of(tidied(entry, SETTINGS))], dry_run=True)
            given.append(declaration_of(tidied(entry, SETTINGS)))
    env.scheduler.sync(given, namespace=here)

    text, declared = through(
        [entry_of(handle.state, SETTINGS) for handle in env.scheduler.iter(namespace=here)], form, tmp_path
    )

    assert env.scheduler.sync(declared, namespace=here).unchanged == [one.schedule_id for one in declared]
    env.advance(timedelta(minutes=7))
    env.scheduler.sync(declared, namespace=there)
    again = [entry_of(handle.state, SETTINGS) for handle in env.scheduler.iter(namespace=there)]
    assert through(again, form, tmp_path)[0] == text


def test_a_file_says_what_people_would_write(env: Env) -> None:
    env.create(
        "nightly",
        Cron("0 2 * * *"),
        timezone="Europe/Berlin",
        args=["eu", None],
        jitter=30,
        overlap="buffer_one",
        retry=RetryPolicy(max_retries=5, base=timedelta(seconds=90)),
        labels={"team": "billing"},
        timeout=5400,
        note="two\nlines",
    )
    env.create("hourly", Every("1h", offset="5m"))
    env.create("reminder", Once(datetime(2099, 1, 1, 8, tzinfo=UTC)), paused=True)
    entries = [entry_of(handle.state, SETTINGS) for handle in env.scheduler.iter(sort="id")]

    assert text_of(entries, Format.TOML, head=["of 3"], remarks={"nightly": ["one", "two"]}) == (
        "# of 3\n\n"
        '[[schedules]]\nschedule_id = "hourly"\nworkflow = "note"\ninterval = "1h"\noffset = "5m"\n\n'
        "# one\n# two\n"
        '[[schedules]]\nschedule_id = "nightly"\nworkflow = "note"\ncron = "0 2 * * *"\ntimezone = "Europe/Berlin"\n'
        'jitter = "30s"\nargs = "[\\"eu\\", null]"\ntimeout = "90m"\noverlap = "buffer_one"\nnote = "two\\nlines"\n\n'
        '[schedules.retry]\nmax_retries = 5\nbase = "90s"\n\n[schedules.labels]\nteam = "billing"\n\n'
        '[[schedules]]\nschedule_id = "reminder"\nworkflow = "note"\npaused = true\nonce = "2099-01-01T08:00:00Z"\n'
    )
    assert text_of(entries[1:2], Format.YAML, head=["of 3"], remarks={"nightly": ["one"]}) == (
        "# of 3\n\nschedules:\n# one\n"
        "- schedule_id: nightly\n  workflow: note\n  cron: 0 2 * * *\n  timezone: Europe/Berlin\n  jitter: 30s\n"
        "  args:\n  - eu\n  - null\n  timeout: 90m\n  overlap: buffer_one\n"
        "  retry:\n    max_retries: 5\n    base: 90s\n"
        "  labels:\n    team: billing\n"
        "  note: 'two\n\n    lines'\n"
    )
    assert json.loads(text_of(entries[:1], Format.JSON, head=["of 3"], remarks={"hourly": ["one"]})) == {
        "$comment": ["of 3", "hourly: one"],
        "schedules": [{"schedule_id": "hourly", "workflow": "note", "interval": "1h", "offset": "5m"}],
    }


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_without_schedules_is_read(form: Format, tmp_path: Path) -> None:
    assert through([], form, tmp_path)[1] == []


def test_a_remark_cannot_leave_its_comment(env: Env) -> None:
    env.create("a")
    entries = [entry_of(env.scheduler.get("a").state, SETTINGS)]

    text = text_of(entries, Format.TOML, head=["one\n[[schedules]]\x1b[31m"])

    assert text.splitlines()[0] == "# one�[[schedules]]�[31m"


SPECS = {
    "crons of two zones": Spec([Cron("0 2 * * *", "Asia/Tokyo"), Cron("0 3 * * *")], "Europe/Berlin"),
    "intervals of two kinds": Spec([Every("1h", offset="0s"), Every("2h")]),
    "a counted @every": Spec([Cron("@every 1h", anchor=datetime(2020, 1, 1, tzinfo=UTC)), Every("2h")]),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_a_timing_that_the_short_keys_cannot_say_is_written_as_a_spec(env: Env, spec: Spec) -> None:
    schedule = env.create("a", spec)

    entry = entry_of(schedule.state, SETTINGS)

    assert entry.keys() == {"schedule_id", "workflow", "spec"}
    assert declaration_of(entry).spec == schedule.state.spec


def test_an_interval_keeps_the_instant_it_counts_from_only_when_that_was_not_its_declaration(env: Env) -> None:
    since = datetime(2020, 1, 1, tzinfo=UTC)
    env.create("given", Every("7h", anchor=since))
    env.create("declared", Every("7h"))
    env.advance()

    assert entry_of(env.scheduler.get("given").state, SETTINGS)["anchor"] == "2020-01-01T00:00:00Z"
    assert "anchor" not in entry_of(env.scheduler.get("declared").state, SETTINGS)
    assert declaration_of({"schedule_id": "a", "workflow": "w", "interval": "7h", "anchor": since}).spec == Spec(
        Every("7h", anchor=since)
    )


def test_what_a_project_has_a_default_of_is_left_out_only_where_that_is_our_own(make_env: MakeEnv) -> None:
    env = make_env(timezone="Europe/Berlin", retry={"max_retries": 5, "base": "30s"})
    project = env.scheduler.settings
    env.create("as-the-project", Cron("0 2 * * *"))
    env.create("as-we", Cron("0 2 * * *", "UTC"), retry={"max_retries": 3})
    env.create("blank", retry=RetryPolicy())
    as_project, as_we, blank = (env.scheduler.get(name).state for name in ("as-the-project", "as-we", "blank"))

    entries = [entry_of(as_project, project), entry_of(as_we, project)]

    berlin = {"timezone": "Europe/Berlin", "retry": {"max_retries": 5, "base": "30s"}}
    assert entries[0] == {"schedule_id": "as-the-project", "workflow": "note", "cron": "0 2 * * *"} | berlin
    assert (entries[1]["timezone"], entries[1]["retry"]) == ("UTC", {"max_retries": 3, "base": "30s"})
    assert env.scheduler.sync(map(declaration_of, entries)).unchanged == ["as-the-project", "as-we"]
    assert untold(blank.definition, project) == {"retry.base": None}


def test_six_fields_are_written_with_the_place_of_their_seconds(env: Env, recwarn: pytest.WarningsRecorder) -> None:
    entry = entry_of(env.create("a", Cron("30 0 2 * * *", seconds="first")).state, SETTINGS)

    assert (entry["cron"], entry["cron_seconds"]) == ("30 0 2 * * *", "first")
    declaration_of(entry)
    assert list(recwarn) == []


def test_what_only_other_surfaces_declare_is_named(env: Env) -> None:
    surface: Any = {"surface": {"name": "n"}, "dead_letter": True}
    assert untold(env.create("a", **surface).state.definition, SETTINGS) == {"name": "n", "dead_letter": True}
    assert untold(env.create("b", retry={"then": "dead"}).state.definition, SETTINGS) == {}


@pytest.mark.parametrize("form", [Format.YAML, Format.JSON])
def test_null_is_as_if_the_key_were_not_there(form: Format, tmp_path: Path) -> None:
    path = tmp_path / f"s.{form}"
    path.write_text('[{"schedule_id": "a", "workflow": "w", "cron": "0 2 * * *", "interval": null, "overlap": null}]')
    assert read(path).declarations == [declaration_of({"schedule_id": "a", "workflow": "w", "cron": "0 2 * * *"})]


YAML = """
schedules:
- schedule_id: nightly
  workflow: w
  cron: 0 2 * * *
  start_at: 2026-01-31T08:00:00+01:00
  retry: &retry
    max_retries: 5
- {schedule_id: often, workflow: w, interval: 15m, retry: *retry}
"""


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s.YAML"])
def test_yaml_is_read_as_people_write_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(YAML)

    nightly, often = read(tmp_path / name).declarations

    assert nightly.spec == Spec(Cron("0 2 * * *"), "UTC", datetime(2026, 1, 31, 7, tzinfo=UTC))
    assert often.options == nightly.options == {"retry": {"max_retries": 5}}


NESTED = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [{','.join([f'*a{n}'] * 9)}]\n" for n in range(9))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n + 1}: &a{n + 1} {{<<: [{','.join([f'*a{n}'] * 9)}]}}\n" for n in range(9))
"""Under a kilobyte each, and gigabytes once every alias is replaced."""

REFUSED = {
    "a key twice": ("[{schedule_id: a, workflow: w, cron: '0 2 * * *', cron: '0 3 * * *'}]", "cron occurs twice"),
    "a key of an object twice": ("[{schedule_id: a, workflow: w, interval: 1h, kwargs: {x: 1, x: 2}}]", "x occurs"),
    "two documents": ("[]\n---\n[]", "is not valid YAML: expected a single document"),
    "a cron that is an alias": ("[{schedule_id: a, workflow: w, cron: * * * * *}]", "quote texts that begin with *"),
    "a class": ("!!python/object:os.system {}", "is not valid YAML"),
    "a date": ("[{schedule_id: a, workflow: w, once: 2030-01-01}]", "once: '2030-01-01' is not a valid instant"),
    "no zone": ("[{schedule_id: a, workflow: w, once: 2030-01-01 08:00:00}]", "once: 2030-01-01 08:00:00 names no"),
    "a date as argument": (
        "[{schedule_id: a, workflow: w, once: 2030-01-01T00:00:00Z, args: x}]",
        "args: is not valid",
    ),
    "lists of lists by aliases": (f"{NESTED}b: [*a9]", "its aliases (*name) repeat more than 1000000 characters"),
    "a long text by aliases": (f"a: &a {'x' * 9_000}\nb: [{','.join(['*a'] * 200)}]", "its aliases (*name) repeat"),
    "merges of merges": (f"{MERGED}b: *a9", "its aliases (*name) repeat more than"),
    "a list that holds itself": ("[{schedule_id: a, workflow: w, interval: 1h, args: &a [*a]}]", "inside the value"),
    "nothing": ("", "no list of schedules"),
    "an anchor of nothing": (
        "[{schedule_id: a, workflow: w, cron: '0 2 * * *', anchor: 2030-01-01T00:00:00Z}]",
        "anchor: is the start of an interval",
    ),
}


@pytest.mark.parametrize(("text", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_yaml_that_is_refused_says_why(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as refused:
        read(path)
    assert hint in str(refused.value)


def test_aliases_of_yaml_repeat_what_entries_share(tmp_path: Path) -> None:
    entries = "".join(f"- {{schedule_id: s{n}, workflow: w, interval: 1h, args: *shared}}\n" for n in range(1_000))
    (tmp_path / "s.yaml").write_text(f"$comment: &shared [{', '.join(['word'] * 50)}]\nschedules:\n{entries}")
    assert len(read(tmp_path / "s.yaml").declarations) == 1_000


@pytest.mark.parametrize("key", [".".join(["a"] * 65), ". ".join(['"a b"'] * 65), f"[{'.'.join(['a'] * 65)}]"])
def test_toml_with_a_key_of_too_many_parts_is_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"{key}{'' if key[0] == '[' else ' = 1'}\n")
    with pytest.raises(InvalidInputError, match="more than 64 parts"):
        read(tmp_path / "s.toml")


def test_a_merge_of_yaml_is_no_key_that_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("[&a {schedule_id: a, workflow: w, interval: 1h}, {<<: *a, schedule_id: b}]")
    assert [one.schedule_id for one in read(tmp_path / "s.yaml").declarations] == ["a", "b"]


@pytest.mark.parametrize(("package", "extra", "form"), [("yaml", "yaml", "yaml"), ("tomlkit", "cli", "toml")])
def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, form: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    entry = tidied({"schedule_id": "a", "workflow": "w", "interval": 600}, SETTINGS)
    with pytest.raises(ConfigError) as refused:
        text_of([entry], Format(form))
    assert f"pip install '.[{extra}]'" in str(refused.value)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
KEYS = ["cron", "cron_seconds", "interval", "offset", "anchor", "from_completion", "once", "spec", "timezone",
        "start_at", "end_at", "args", "kwargs", "memo", "retry", "note", "paused", "jitter"]  # fmt: skip


@settings(max_examples=sized(200, 5000), deadline=None, derandomize=True)
@given(
    when=WHEN | st.fixed_dictionaries({}),
    wrong=st.dictionaries(st.sampled_from(KEYS), ANY, min_size=1, max_size=4),
)
def test_an_entry_of_anything_is_read_or_refused(when: dict[str, Any], wrong: dict[str, Any]) -> None:
    with suppress(InvalidInputError):  # any other error is shown as a traceback
        assert declaration_of({"schedule_id": "a", "workflow": "w", **when, **wrong}).schedule_id == "a"
