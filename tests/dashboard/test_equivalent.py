"""Each form shows a command and Python code. Executed, each of them has the same effect as the button of the form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from rqsched import After, Cron, Every, Once, RetryPolicy, Spec
from rqsched.api.scheduler import Scheduler
from rqsched.dashboard import actions
from rqsched.dashboard.frame import Form
from rqsched.dashboard.routes import routes
from rqsched.features.bulk.page import MOST_MATCHING
from rqsched.http import create_app
from rqsched.kernel.decide.model import DEFINITION
from rqsched.testing import ManualClock, execute_pending
from rqsched.types import Schedule
from tests.support.cli import BOOM, HELLO, Cli
from tests.support.env import Env
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb, Web

WAYS = ("form", "command", "python")
NIGHTLY = Cron("0 2 * * *")
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
FIRST, LAST = TODAY - timedelta(days=5), TODAY - timedelta(days=2)
LATER = TODAY + timedelta(days=9)


@pytest.fixture
def served(cli: Cli) -> Pages:
    """The pages over the database that the commands of `cli` use."""
    return Pages(Web(create_app(cli.scheduler), Env(cli.scheduler, ManualClock(TODAY))))


@dataclass(frozen=True)
class Texts:
    """The texts of a page."""

    command: str
    python: str
    page: str

    @classmethod
    def of(cls, page: str) -> Texts:
        shown = dict(
            re.findall(r'<p class="small">(As a command|In Python)[^\n]*?</p><pre tabindex="0">(.*?)</pre>', page, re.S)
        )
        return cls(unescape(shown.get("As a command", "")), unescape(shown.get("In Python", "")), page)


def run_commands(cli: Cli, text: str, *more: str) -> None:
    """Execute each line as a shell would."""
    for words in map(shlex.split, text.splitlines()):
        assert words[0] == "rqsched"
        cli(*words[1:], *more)


def run_python(scheduler: Scheduler, text: str) -> None:
    exec(compile(text, "shown", "exec"), {"scheduler": scheduler})


def defined(state: Schedule) -> dict[str, object]:
    """The definition, without the anchors of its intervals, which are the times of the declarations."""
    own = {name: getattr(state.definition, name) for name in DEFINITION}
    return own | {"spec": re.sub(r'"anchor":"[^"]*"', "", state.definition.spec), "note": state.note}


def look_at_schedule(scheduler: Scheduler, name: str) -> object:
    """The schedule with this id, without what differs from one schedule to the next: uids and times of now."""
    handle = scheduler.newest(name)
    state = handle.state
    events = [
        (one.event_type, one.payload.get("reason") or one.payload.get("command_context", {}).get("reason"))
        for one in handle.history()
    ]
    runs = [(run.kind, run.status, run.attempt, run.backfill_uid and run.occurrence_at) for run in handle.runs().items]
    return state.status, state.resume_at, state.resume_mode, state.skipped_at, defined(state), events, runs


def look_at_several(scheduler: Scheduler, name: str) -> object:
    return [look_at_schedule(scheduler, f"{name}.{number}") for number in (1, 2)]


def plain(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY)


def paused(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY, paused=True)


def labelled(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY, labels={"a": "b"}, queue="q", exclude=["Sat"], overlap="allow_all")


def edited(scheduler: Scheduler, name: str) -> None:
    handle = scheduler.create(name, HELLO, NIGHTLY, queue="q", exclude=["Sat"])
    handle.update(spec=Every("2h"), queue=None, exclude=[], labels={"a": "b"}, retry={"max_retries": 9})


def upstream(scheduler: Scheduler, name: str) -> None:
    plain(scheduler, f"{name}.first")


def done(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY, max_runs=1).trigger()
    assert scheduler.get(name).status == "done"


def with_run(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY, paused=True).trigger(force=True)


def with_cancelled(scheduler: Scheduler, name: str) -> None:
    with_run(scheduler, name)
    newest_run(scheduler, name).cancel()


def with_failed(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, BOOM, NIGHTLY, retry=RetryPolicy(max_retries=0)).trigger()
    lose(scheduler, name)


def lose(scheduler: Scheduler, name: str) -> None:
    """The newest run of a schedule fails: its code raises when it is executed."""
    execute_pending(scheduler)
    assert newest_run(scheduler, name).status == "failed"


def several(scheduler: Scheduler, name: str) -> None:
    for number in (1, 2):
        scheduler.create(f"{name}.{number}", HELLO, NIGHTLY, labels={"of": name})


def several_paused(scheduler: Scheduler, name: str) -> None:
    for number in (1, 2):
        scheduler.create(f"{name}.{number}", HELLO, NIGHTLY, labels={"of": name}, paused=True)


def newest_run(scheduler: Scheduler, name: str) -> Any:
    return scheduler.newest(name).runs().items[0]


def nothing(scheduler: Scheduler, name: str) -> None:
    del scheduler, name


def with_backfill(scheduler: Scheduler, name: str) -> None:
    handle = scheduler.create(name, HELLO, Every("4h"))
    handle.backfill(TODAY - timedelta(days=2), TODAY - timedelta(days=1))


def backfill_of(scheduler: Scheduler, name: str) -> Any:
    return scheduler.backfills.list(schedule_id=name).items[0]


def look_at_backfill(scheduler: Scheduler, name: str) -> object:
    return backfill_of(scheduler, name).status, {run.status for run in scheduler.get(name).runs(500).items}


def with_limit(scheduler: Scheduler, name: str) -> None:
    scheduler.create(name, HELLO, NIGHTLY, limit=name, limit_running=3)


def look_at_limit(scheduler: Scheduler, name: str) -> object:
    (found,) = (one for one in scheduler.limits.iter() if one.name == name)
    return found.number, found.rate


def with_calendar(scheduler: Scheduler, name: str) -> None:
    scheduler.calendars.set(name, ["2026-12-25"], description="Holidays", reaches=date(2027, 1, 1))


def look_at_calendar(scheduler: Scheduler, name: str) -> object:
    found = [one for one in scheduler.calendars.list() if one.name == name]
    return [(one.exclude, one.description, one.reaches) for one in found]


def frozen(scheduler: Scheduler, name: str) -> None:
    scheduler.freeze("before", namespace=name)


def frozen_with_due(scheduler: Scheduler, name: str) -> None:
    scheduler.create("nightly", HELLO, NIGHTLY, namespace=name).trigger()
    frozen(scheduler, name)


def look_at_freezes(scheduler: Scheduler, name: str) -> object:
    runs = [run.status for _, run in scheduler.runs.iter(namespace=name)]
    return [(one.reason, one.thaw_reason) for one in scheduler.freezes(namespace=name)], runs


def schedules_of(scheduler: Scheduler, name: str) -> object:
    return [one.schedule_id for one in scheduler.iter(namespace=name)]


@dataclass(frozen=True)
class Case:
    """A form, filled in."""

    route: str
    """The path of its route."""
    fields: Mapping[str, Any]
    """The fields; `{name}` stands for the name of the schedule, calendar, group or namespace."""
    prepare: Callable[[Scheduler, str], None] = plain
    look: Callable[[Scheduler, str], object] = look_at_schedule
    """Returns what the form changed."""
    ways: tuple[str, ...] = WAYS
    more: tuple[str, ...] = ()
    """Words that are added to the command, because it would ask a question otherwise."""


def act(action: str, prepare: Callable[[Scheduler, str], None] = plain, **fields: Any) -> Case:
    return Case("/schedules/{schedule_id}/do", {"action": action, "reason": "it's due", **fields}, prepare)


def on_run(action: str, prepare: Callable[[Scheduler, str], None]) -> Case:
    return Case("/runs/{uid}/do", {"action": action, "reason": "-f is slow"}, prepare)


def chosen(action: str, prepare: Callable[[Scheduler, str], None] = several, **fields: Any) -> Case:
    ids = ["{name}.1", "{name}.2"]
    return Case(
        "/bulk", {"action": action, "id": ids, "confirmed": "yes", "reason": "x", **fields}, prepare, look_at_several
    )


def all_that_match(
    action: str, prepare: Callable[[Scheduler, str], None] = several, ways: tuple[str, ...] = WAYS, **fields: Any
) -> Case:
    given = {"action": action, "all": "yes", "label": "of:{name}", "q": "{name}", "reason": "x", **fields}
    return Case("/bulk", given, prepare, look_at_several, ways)


NEW = {"kind": "cron", "timing": "0 0 2 * * MON-FRI", "timezone": "Europe/Berlin", "workflow": HELLO, "queue": "slow"}
AFTER = {"kind": "after-failure", "timing": "{name}.first"}
MORE = {
    "args": '["eu", null]', "kwargs": '{"text": "it\'s \\"x\\" \\\\ é"}', "exclude": "Sat, Sun\n2026-12-25",
    "labels": "team:billing\nof:it", "retry.max_retries": "7", "retry.base": "30s", "timeout": "90", "jitter": "2m",
    "overlap": "buffer_all", "environments": "staging, prod", "search_attributes": '{"tier": 3}', "max_runs": "9",
    "description": "-v is not a flag", "expect_success_within": "26h", "sentry": "nightly", "reason": "new",
}  # fmt: skip
EDIT = "/schedules/{schedule_id}/edit"
KEPT = {"version": "1", "kind": "keep", "workflow": HELLO}
AWAY = KEPT | {"labels": "", "queue": "", "exclude": "", "overlap": "skip"}
RETRY = {"action": "retry", "schedule": "{name}", "status": "failures", "since": FIRST.isoformat()}
OTHER = '{"args": ["eu"], "kwargs": {"a": "it\'s"}}'
STEP = {"namespace": "{name}", "reason": "x"}
STOP = "/backfills/{uid}/cancel"
HOLIDAYS = {"exclude": "2026-12-25\nSat, Sun", "description": "Shop's days", "reaches": "2027-01-01"}
THAW = {"reason": "it has moved", "missed": "none", "cancel_pending": "yes"}
BY_HAND = ("form", "python")
CASES = {
    "pause": act("pause"),
    "pause-until": act("pause", until=LATER.isoformat(), on_resume="once"),
    "resume": act("resume", paused, on_resume="next"),
    "resume-as-declared": act("resume", paused, on_resume=""),
    "restart": act("restart", done),
    "run-now": act("trigger"),
    "run-now-paused": act("trigger", paused, overlap="allow_all"),
    "skip": act("skip_next", count="2"),
    "backfill": act("backfill", start=FIRST.isoformat(), end=LAST.isoformat(), overlap="allow_all"),
    "delete": act("delete"),
    "cancel": on_run("cancel", with_run),
    "terminate": on_run("terminate", with_run),
    "retry": on_run("retry", with_cancelled),
    "run-again": Case("/runs/{uid}/again", {"reason": "x"}, with_cancelled),
    "run-again-with": Case("/runs/{uid}/again", {"reason": "x", "arguments": OTHER}, with_cancelled),
    "stop-freeze": Case("/namespace/stop", STEP | {"step": "freeze"}, nothing, look_at_freezes),
    "stop-cancel": Case("/namespace/stop", STEP | {"step": "cancel"}, frozen_with_due, look_at_freezes),
    "retry-failed": Case("/retry-failed", {"schedule": "{name}", "since": FIRST.isoformat()}, with_failed),
    "create": Case("/schedules", NEW | MORE | {"schedule_id": "{name}"}, nothing),
    "create-paused": Case("/schedules", NEW | {"schedule_id": "{name}", "paused": "on", "missed": "skip"}, nothing),
    "create-interval": Case("/schedules", NEW | {"schedule_id": "{name}", "kind": "every", "timing": "1h30m"}, nothing),
    "create-after": Case("/schedules", NEW | AFTER | {"schedule_id": "{name}"}, upstream),
    "edit": Case(EDIT, NEW | MORE | {"version": "1"}),
    "edit-away": Case(EDIT, AWAY, labelled),
    "bulk-pause-chosen": chosen("pause"),
    "bulk-resume-chosen": chosen("resume", several_paused, on_resume="next"),
    "bulk-run-chosen": chosen("trigger", several_paused),
    "bulk-pause": all_that_match("pause", until=LATER.isoformat(), on_resume="once"),
    "bulk-resume": all_that_match("resume", several_paused, on_resume="once"),
    "bulk-run": all_that_match("trigger", overlap="allow_all"),
    "bulk-skip": all_that_match("skip_next", count="3"),
    "bulk-run-paused": all_that_match("trigger", several_paused, BY_HAND, status="paused"),
    "bulk-delete": all_that_match("delete", ways=BY_HAND),
    "stop-backfill": Case(STOP, {"reason": "too much"}, with_backfill, look_at_backfill, BY_HAND),
    "cancel-runs": Case("/bulk/runs", {"action": "cancel", "schedule": "{name}", "reason": "x"}, with_run),
    "retry-runs": Case("/bulk/runs", RETRY, with_failed),
    "limit": Case("/limits", {"name": "{name}", "number": "5", "rate": "100/min"}, with_limit, look_at_limit),
    "limit-off": Case("/limits", {"name": "{name}", "number": "", "rate": "7/h"}, with_limit, look_at_limit),
    "calendar": Case("/calendars", {"name": "{name}", **HOLIDAYS}, nothing, look_at_calendar),
    "calendar-edit": Case("/calendars", {"name": "{name}", "exclude": "", "revision": "1"}, with_calendar,
                          look_at_calendar),
    "calendar-delete": Case("/calendars/{name}/delete", {"revision": "1"}, with_calendar, look_at_calendar),
    "freeze": Case("/freeze", {"namespace": "{name}", "reason": "it moves"}, nothing, look_at_freezes),
    "thaw": Case("/thaw", {"namespace": "{name}", **THAW}, frozen_with_due, look_at_freezes),
    "namespace-delete": Case(
        "/namespace/delete", {"namespace": "{name}", "confirm": "{name}"}, frozen_with_due, schedules_of,
        more=("--yes",),
    ),
    "undo": Case("/schedules/{schedule_id}/undo/{sequence}", {"version": "2"}, edited),
}  # fmt: skip
"""At least one case for each form of the dashboard, and for each action."""


def filled(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [filled(one, name) for one in value]
    return value.replace("{name}", name) if isinstance(value, str) else value


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_command_and_call_do_what_the_button_does(served: Pages, cli: Cli, case: Case) -> None:
    scheduler, looked = cli.scheduler, dict[str, object]()
    for way in case.ways:
        name = f"by-{way}"
        case.prepare(scheduler, name)
        fields = {key: filled(value, name) for key, value in case.fields.items()}
        uid = ""
        if "{uid}" in case.route:
            uid = (newest_run if case.route.startswith("/runs") else backfill_of)(scheduler, name).uid
        path = case.route.format(schedule_id=name, name=name, uid=uid, sequence=2)
        texts = Texts.of(served.send(path, as_text="yes", **fields).text)
        before = case.look(scheduler, name) if case.prepare not in {nothing, upstream} else None
        if way == "command":
            run_commands(cli, texts.command, *case.more)
        elif way == "python":
            run_python(scheduler, texts.python)
        else:
            press(served, path, fields)
        looked[way] = case.look(scheduler, name)
        assert looked[way] != before
        assert ("command" in case.ways) == bool(texts.command)
    assert {way: plain_names(one, way) for way, one in looked.items()} == dict.fromkeys(
        case.ways, plain_names(looked["form"], "form")
    )


def plain_names(value: object, way: str) -> str:
    return repr(value).replace(f"by-{way}", "NAME")


def press(served: Pages, path: str, fields: Mapping[str, Any]) -> None:
    """Send a form, and the forms that follow, until it is done."""
    answer = served.send(path, **fields)
    while answer.status_code == 200 and 'name="cursor"' in answer.text:
        found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', answer.text)
        answer = served.send(path, **{**fields, **{key: unescape(value) for key, value in found if key != "csrf"}})
    assert answer.status_code in {200, 303}, answer.text
    if answer.status_code == 303:
        assert "Not done" not in served.get(answer.headers["location"])


def test_every_form_says_its_command_and_its_call() -> None:
    forms = {one.path: one.equivalent for one in routes() if isinstance(one, Form)}
    assert [path for path, equivalent in forms.items() if equivalent is None] == []
    assert {case.route for case in CASES.values()} == set(forms)


def test_every_action_is_among_the_cases() -> None:
    told = {str(case.fields["action"]) for case in CASES.values() if "action" in case.fields}
    assert told | {"retry_failed_targets"} == {*actions.ACTIONS, *actions.ON_RUNS}


def test_confirmation_shows_the_texts_and_a_press_of_the_button_does_nothing(served: Pages) -> None:
    handle = served.env.scheduler.create("nightly", HELLO, NIGHTLY)
    asked = Texts.of(served.get("/schedules/nightly/confirm?action=pause"))
    assert (asked.command, asked.python) == ("rqsched pause nightly", 'scheduler.get("nightly").pause()')
    shown = Texts.of(served.send("/schedules/nightly/do", action="pause", reason="x", as_text="yes").text)
    assert shown.command == "rqsched pause nightly --reason x"
    assert "Nothing was done." in shown.page
    assert handle.refresh().status == "active"


def test_retry_of_failed_targets_is_a_flag_and_an_argument(served: Pages) -> None:
    with_run(served.env.scheduler, "nightly")
    uid = newest_run(served.env.scheduler, "nightly").uid
    shown = Texts.of(served.send(f"/runs/{uid}/do", action="retry_failed_targets", as_text="yes").text)
    assert shown.command == f"rqsched retry {uid} --failed-targets"
    assert shown.python == f'scheduler.runs.get("{uid}").retry(failed_targets=True)'


def test_runs_of_a_namespace_are_terminated_one_by_one(served: Pages) -> None:
    shown = Texts.of(served.send("/namespace/stop", step="terminate", reason="x", as_text="yes").text)
    assert shown.command == ""
    assert shown.python == 'for _, run in scheduler.runs.iter(status=["running"]):\n    run.terminate(reason="x")'


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/bulk", {"action": "pause", "all": "yes"}),
        ("/bulk/runs", {"action": "cancel"}),
        ("/bulk/runs", {"action": "retry"}),
        ("/namespace/stop", {"step": "cancel", "reason": "x"}),
    ],
)
def test_texts_for_all_that_match_take_as_many_as_the_page(served: Pages, path: str, fields: dict[str, str]) -> None:
    shown = Texts.of(served.send(path, **fields, as_text="yes").text)
    assert f"--bound {MOST_MATCHING}" in shown.command
    assert f"bound={MOST_MATCHING}" in shown.python


def test_stop_of_a_backfill_ends_it_before_its_runs(served: Pages) -> None:
    with_backfill(served.env.scheduler, "nightly")
    uid = backfill_of(served.env.scheduler, "nightly").uid
    shown = Texts.of(served.get(f"/backfills/{uid}/cancel"))
    assert shown.command == ""
    assert shown.python.splitlines()[0] == f'scheduler.backfills.cancel("{uid}")'
    assert f"bound={backfill_of(served.env.scheduler, 'nightly').bound}" in shown.python
    running = Texts.of(served.send(f"/backfills/{uid}/cancel", running="yes", as_text="yes").text)
    assert '"running"' in running.python
    assert '"running"' not in shown.python


def test_invisible_characters_of_a_reason_are_escaped(served: Pages) -> None:
    plain(served.env.scheduler, "nightly")
    shown = Texts.of(served.send("/schedules/nightly/do", action="pause", reason="a\u202eb", as_text="yes").text)
    assert shown.command == r"rqsched pause nightly --reason $'a\u202eb'"
    assert shown.python == r'scheduler.get("nightly").pause(reason="a\u202eb")'


DEFINITIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (NIGHTLY, {}),
    "rich": (
        Cron("0 0 2 * * MON-FRI", timezone="Europe/Berlin", seconds="first"),
        {
            "timezone": "America/Chicago", "args": ["eu", None, 1.5], "kwargs": {"text": "it's\n\"x\" é"},
            "labels": {"team": "billing"}, "exclude": ["Sat, Sun"], "retry": RetryPolicy(max_retries=7, then="dead"),
            "jitter": "2m", "overlap": "buffer_all", "description": "-v", "note": "careful", "paused": True,
            "notifications": {"sentry": "nightly", "events": ["RunFailed"]}, "dst_fold": "both",
        },
    ),
    "mixed": (Spec([NIGHTLY, Every("2h", offset="5m"), Once(LATER)], "Europe/Berlin", end_at=LATER), {}),
    "from-completion": (Every("10m", from_completion=True), {}),
    "after": (After("first", "end"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFINITIONS)
def test_shown_definition_recreates_the_schedule(served: Pages, cli: Cli, name: str) -> None:
    (spec, options), scheduler = DEFINITIONS[name], cli.scheduler
    plain(scheduler, "first")
    looked = []
    handle = scheduler.create("it", HELLO, spec, **options)
    for way in ("command", "python"):
        looked.append(look_at_schedule(scheduler, "it"))
        shown = Texts.of(served.get("/schedules/it/definition"))
        handle.delete()
        if way == "python" or (name == "rich" and not shown.command):  # no flag names the zone of one expression
            run_python(scheduler, shown.python)
        else:
            run_commands(cli, shown.command)
        handle = scheduler.get("it")
    looked.append(look_at_schedule(scheduler, "it"))
    assert looked == [looked[0]] * 3


def test_urls_of_notifications_are_never_shown(make_web: MakeWeb) -> None:
    served = Pages(make_web(webhook_secret="x" * 32))
    scheduler = served.env.scheduler
    served.env.register(HELLO, print)
    told = {"webhook": "https://hooks.example.com/secret-1", "heartbeat": "https://hc.example.com/secret-2"}
    scheduler.create("nightly", HELLO, NIGHTLY, notifications={**told, "sentry": "nightly"})
    page = served.get("/schedules/nightly/definition")
    assert "secret" not in page
    assert "It lacks: the URL of its webhook, the URL of its heartbeat." in page
    fields = {"kind": "keep", "workflow": HELLO, "sentry": "other", "queue": "q", "version": "1"}
    shown = Texts.of(served.send("/schedules/nightly/edit", as_text="yes", **fields).text)
    assert "secret" not in shown.page
    assert shown.command == "rqsched update nightly --queue q --set notifications.sentry=other"
    assert shown.python == 'scheduler.get("nightly").update(queue="q")'
    assert "The Python lacks the notifications" in shown.page


def test_filter_that_only_the_list_has_is_said_to_have_no_command(served: Pages) -> None:
    several(served.env.scheduler, "late")
    shown = Texts.of(served.send("/bulk", action="pause", all="yes", problem="failing", as_text="yes").text)
    assert (shown.command, shown.python) == ("", "")
    assert "Neither a command nor the methods for many schedules have this filter." in shown.page


def test_viewer_of_a_namespace_gets_texts_with_its_namespace(make_web: MakeWeb) -> None:
    pages = Pages(make_web(app={}, tokens=TOKENS)).log_in("tenant")
    pages.env.create("nightly", namespace="tenant")
    shown = Texts.of(pages.get("/schedules/nightly/confirm?action=delete&namespace=tenant"))
    assert shown.command == "rqsched delete nightly --namespace tenant"
    assert shown.python == 'scheduler.get("nightly", namespace="tenant").delete()'


def test_role_that_may_not_act_gets_no_texts(make_web: MakeWeb) -> None:
    pages = Pages(make_web(app={}, tokens=TOKENS)).log_in("reader")
    pages.env.create("nightly")
    answer = pages.send("/schedules/nightly/do", action="pause", as_text="yes")
    assert answer.status_code == 403
    assert "rqsched pause" not in answer.text
