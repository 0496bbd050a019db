"""Actions of a viewer: confirmed first, audited with the reason, and refused without role, form value or state."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from rqsched import Cron, Every, RetryPolicy, Spec
from rqsched.dashboard import session
from rqsched.http import create_app
from rqsched.http.ended_sessions import FRESH, EndedSessions
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.store.metadata import SESSION_KEY, renew_id, set_value, values_under
from rqsched.testing import execute_pending
from rqsched.workflows import make_workflow
from tests.support.env import DAY, HOUR, MINUTE, ONCE, Env
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages, fields_of
from tests.support.servers import PostgresServer
from tests.support.sql import NO_PATIENCE
from tests.support.web import MakeWeb, Web


@pytest.mark.every_database
def test_pause_resume_run_now_and_delete_work_and_are_audited(any_pages: Pages) -> None:
    env = any_pages.env
    handle = env.create("nightly", spec=Cron("0 2 * * *"))
    act = "/schedules/nightly/do"
    assert "nightly is paused." in any_pages.do(act, action="pause", reason="vendor moves")
    assert handle.refresh().status == "paused"
    assert "Run #1 of nightly is triggered." in any_pages.do(act, action="trigger")
    assert "nightly fires again." in any_pages.do(act, action="resume", on_resume="next")
    assert handle.refresh().status == "active"
    assert "nightly is deleted." in any_pages.do(act, action="delete", reason="replaced")
    contexts = [event.payload.get("command_context", {}) for event in handle.history()]
    assert [(one.get("source"), one.get("reason")) for one in contexts[1:]] == [
        ("dashboard", "vendor moves"),
        ("dashboard", None),
        ("dashboard", None),
        ("dashboard", "replaced"),
    ]


def test_pause_until_a_time_is_shown_on_the_page_and_in_the_list(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    act = "/schedules/nightly/do"
    until = pages.env.clock.now() + timedelta(hours=2)

    done = pages.do(act, action="pause", until=until.isoformat(), on_resume="once")

    assert f"nightly is paused until {until:%a %d %b %Y %H:%M}" in done
    assert (handle.refresh().resume_at, handle.resume_mode) == (until, "once")
    assert "fires again by itself" in done
    assert "making up for the pause with one run" in done
    assert "fires again by itself" in pages.get("/schedules")
    assert 'class="rest"' in pages.get("/timeline")
    assert "is not a time" in pages.do(act, action="pause", until="soon")
    pages.do(act, action="resume")
    assert "fires again by itself" not in pages.get("/schedules")


def test_what_is_skipped_and_who_asked_is_on_the_page(pages: Pages) -> None:
    handle = pages.env.create("nightly", spec=Cron("0 2 * * *"))
    act = "/schedules/nightly/do"

    done = pages.do(act, action="skip_next", count="2", reason="the vendor moves")

    assert len(handle.refresh().skips) == 2
    assert "nightly skips Fri 16 Jan 2026 02:00" in done
    assert "the vendor moves" in done
    assert "Skips " in pages.get("/schedules/nightly")
    assert 'value="2"' in pages.get("/schedules/nightly/confirm?action=skip_next")
    assert "is not a whole number" in pages.do(act, action="skip_next", count="some")
    assert "nightly skips nothing." in pages.do(act, action="skip_next", count="0")
    assert "Skips " not in pages.get("/schedules/nightly")


def test_every_offered_action_has_a_confirmation_that_names_the_schedule(pages: Pages) -> None:
    pages.env.create("nightly")
    questions = {"trigger": "Run nightly now?", "pause": "Pause nightly?", "backfill": "Backfill nightly?"}
    for action, question in {**questions, "delete": "Delete nightly?"}.items():
        assert question in pages.get(f"/schedules/nightly/confirm?action={action}")
    assert "That cannot be read" in pages.get("/schedules/nightly/confirm?action=explode", status=422)


def test_an_action_that_the_state_refuses_says_why_and_changes_nothing(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    assert "Not done:" in pages.do("/schedules/nightly/do", action="resume")
    assert handle.refresh().version == 1


def test_one_failed_run_is_retried_from_its_page(pages: Pages) -> None:
    env = pages.env
    run = env.fail_next(env.create("crm", retry=ONCE))
    assert 'value="retry"' in pages.get(f"/runs/{run.uid}")
    assert "Run #1 of crm is pending." in pages.do(f"/runs/{run.uid}/do", action="retry")
    assert 'value="retry"' not in pages.get(f"/runs/{run.uid}")


def test_a_run_is_cancelled(pages: Pages) -> None:
    run = present(pages.env.create("nightly").trigger().run)
    assert "is cancelled." in pages.do(f"/runs/{run.uid}/do", action="cancel")
    assert run.refresh().status == "cancelled"


@pytest.mark.parametrize(
    ("action", "event_type"), [("cancel", "RunCancelled"), ("terminate", "RunTerminated")], ids=["cancel", "terminate"]
)
def test_who_ended_a_run_and_why_is_in_the_history(pages: Pages, action: str, event_type: str) -> None:
    schedule = pages.env.create()
    ended, waiting = schedule.trigger().run, schedule.trigger("buffer_all").run
    assert ended is not None
    assert waiting is not None
    pages.do(f"/runs/{ended.uid}/do", action=action, reason="the vendor is away")
    (event,) = [event for event in schedule.history() if event.event_type == event_type]
    assert event.workflow_run_id == ended.uid
    assert (event.payload["reason"], event.payload["previous_status"]) == ("the vendor is away", "pending")
    context = event.payload["command_context"]
    assert (context["principal"], context["source"]) == ("local", "dashboard")
    started = [event for event in schedule.history() if event.workflow_run_id == waiting.uid][-1]
    assert "command_context" not in started.payload, "nobody asked for the run that starts in its place"
    assert "the vendor is away" in pages.get(f"/runs/{ended.uid}")


def test_a_form_without_the_value_of_its_page_is_refused(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    for value in ("", "0" * 32, "0" * 64, pages.cookies.get("rqsched_csrf", ""), "ä" * 64):
        answer = pages.send("/schedules/nightly/do", csrf=value, action="delete")
        assert answer.status_code == 403
        assert "load the page again" in answer.text
    assert handle.refresh().status == "active"


def test_a_page_of_another_site_changes_nothing(pages: Pages) -> None:
    handle = pages.env.create("nightly")
    pages.web.headers["sec-fetch-site"] = "cross-site"
    assert pages.send("/schedules/nightly/do", action="pause").status_code == 403
    assert handle.refresh().status == "active"


@pytest.fixture
def guarded(make_web: MakeWeb) -> Pages:
    """Pages of an application with tokens, and a schedule in `default`."""
    pages = Pages(make_web(tokens=TOKENS))
    pages.env.create("nightly")
    return pages


def test_without_a_session_every_page_leads_to_the_login_and_back(guarded: Pages) -> None:
    answer = guarded.web.get("/schedules?q=night")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?to=%2Fschedules%3Fq%3Dnight"


def test_an_unknown_token_is_refused_and_a_foreign_target_ignored(guarded: Pages) -> None:
    guarded.get("/login")
    refused = guarded.send("/login", token="wrong")
    assert refused.status_code == 401
    assert "rqsched_session" not in guarded.cookies
    answer = guarded.send("/login", token="reader-secret-0123456789", to="//evil.example")
    assert answer.headers["location"] == "/"


def test_a_reader_sees_no_action_and_may_do_none(guarded: Pages) -> None:
    reader = guarded.log_in("reader")
    for path in ("/schedules", "/schedules/nightly"):
        shown = reader.get(path)
        assert "Run now" not in shown
        assert "Delete" not in shown
    assert reader.send("/schedules/nightly/do", action="pause").status_code == 403
    assert reader.send("/bulk", action="pause", id="nightly", confirmed="yes").status_code == 403
    reader.get("/schedules/new", status=403)


def test_an_operator_pauses_but_does_not_delete(guarded: Pages) -> None:
    operator = guarded.log_in("operator")
    assert "nightly is paused." in operator.do("/schedules/nightly/do", action="pause")
    assert operator.send("/schedules/nightly/do", action="delete").status_code == 403
    event = operator.env.scheduler.get("nightly").history()[-1]
    assert event.payload["command_context"]["principal"] == "operator"


def test_a_tenant_sees_its_namespace_only(guarded: Pages) -> None:
    tenant = guarded.log_in("tenant")
    assert "nightly" not in tenant.get("/schedules")
    tenant.get("/schedules/nightly", status=404)
    tenant.get("/schedules?namespace=default", status=404)


def test_the_form_proposes_to_a_tenant_only_workflows_that_its_schedules_use(guarded: Pages) -> None:
    def proposed() -> str:
        return tenant.get("/schedules/new").partition('<datalist id="workflows">')[2].partition("</datalist>")[0]

    tenant = guarded.log_in("tenant")
    name = guarded.env.scheduler.get("nightly").workflow
    assert name not in proposed()
    guarded.env.create("own", namespace="tenant")
    assert f'"{name}"' in proposed()


def test_a_session_ends_with_its_time_and_with_the_log_out(guarded: Pages) -> None:
    reader = guarded.log_in("reader")
    guarded.env.clock.advance(11 * HOUR)
    reader.get("/schedules")
    guarded.env.clock.advance(HOUR + MINUTE)
    assert guarded.web.get("/schedules", headers=reader._headers()).status_code == 303


@pytest.mark.every_database
def test_session_that_is_logged_out_is_refused_by_every_process_and_others_of_the_token_are_not(
    make_web: MakeWeb, database_url: str
) -> None:
    web = make_web(tokens=TOKENS, database_url=database_url)
    env, elsewhere = web.env, Web(create_app(web.env.scheduler), web.env)
    leaver, stayer = Pages(web).log_in("reader"), Pages(web).log_in("reader")
    copied = leaver._headers()
    assert elsewhere.get("/schedules", headers=copied).status_code == 200

    leaver.get("/schedules")
    assert leaver.send("/logout").status_code == 303

    assert web.get("/schedules", headers=copied).status_code == 303
    env.clock.advance(FRESH)
    assert elsewhere.get("/schedules", headers=copied).status_code == 303
    for one in (web, elsewhere):
        assert one.get("/schedules", headers=stayer._headers()).status_code == 200


def rows_of_ended_sessions(env: Env) -> int:
    return len(env.scheduler.runtime.database.read(lambda connection: values_under(connection, "logout:")))


def test_row_of_an_ended_session_lives_as_long_as_its_cookie(guarded: Pages) -> None:
    env = guarded.env
    for _ in range(2):
        guarded.log_in("reader")
        guarded.get("/schedules")
        guarded.send("/logout")
    assert rows_of_ended_sessions(env) == 2
    env.clock.advance(12 * HOUR)
    guarded.log_in("operator")
    guarded.get("/schedules")
    guarded.send("/logout")
    assert rows_of_ended_sessions(env) == 1
    guarded.get("/login")
    assert guarded.send("/logout").status_code == 303  # of nobody: no row
    assert rows_of_ended_sessions(env) == 1


def test_log_out_while_the_database_is_away_forgets_the_session_here_and_says_what_it_could_not_do(
    make_web: MakeWeb, own_postgres_url: str, own_postgres: PostgresServer
) -> None:
    pages = Pages(make_web(tokens=TOKENS, database_url=own_postgres_url)).log_in("reader")
    pages.get("/schedules")
    pages.env.scheduler.runtime.database.patience = NO_PATIENCE
    own_postgres.stop()
    answer = pages.send("/logout")
    assert answer.status_code == 503
    assert "a copy of its cookie is accepted until it expires" in answer.text
    assert 'rqsched_session=""' in answer.headers["set-cookie"]


def test_a_forged_session_is_no_session(guarded: Pages) -> None:
    guarded.log_in("reader")
    encoded, _, signature = guarded.cookies["rqsched_session"].partition(".")
    for forged in (f"{encoded}.{'0' * 64}", f"{encoded[:-4]}AAAA.{signature}", "x", "."):
        guarded.web.headers["cookie"] = "rqsched_session=" + forged
        assert guarded.web.get("/schedules").status_code == 303


PLANTED = "planted-value-that-signs"


def plant_secret(env: Env) -> None:
    env.scheduler.runtime.database.transact(lambda connection: set_value(connection, SESSION_KEY, PLANTED))


def _signed(body: str, secret: str = PLANTED) -> str:
    """Return a session of the reader whose body is signed as ours are, where SQL has the planted value."""
    key = session._key(secret.encode(), hashlib.sha256(b"reader-secret-0123456789").digest())
    return f"{base64.urlsafe_b64encode(body.encode()).decode()}.{session._signature(key, body.encode())}"


def status_with(guarded: Pages, cookie: str) -> int:
    return guarded.web.get("/schedules", headers={"cookie": f"rqsched_session={cookie}"}).status_code


def test_the_digest_of_a_token_alone_signs_no_session(guarded: Pages) -> None:
    guarded.log_in("reader")
    body = json.dumps(["reader", int((guarded.env.clock.now() + HOUR).timestamp())]).encode()
    digest = hashlib.sha256(b"reader-secret-0123456789").digest()
    encoded = base64.urlsafe_b64encode(body).decode()
    for purpose in (b"", session._PURPOSE):
        assert status_with(guarded, f"{encoded}.{hmac.new(digest, purpose + body, 'sha256').hexdigest()}") == 303
        assert status_with(guarded, f"{encoded}.{hmac.new(b'', purpose + digest + body, 'sha256').hexdigest()}") == 303
    assert status_with(guarded, _signed(body.decode(), "")) == 303


def test_a_signed_session_that_ends_later_than_a_session_may_is_refused(guarded: Pages) -> None:
    plant_secret(guarded.env)
    last = int((guarded.env.clock.now() + session.LIFETIME).timestamp())
    statuses = {end: status_with(guarded, _signed(json.dumps(["reader", last + end]))) for end in (-60, 0, 1, 10**9)}
    assert statuses == {-60: 200, 0: 200, 1: 303, 10**9: 303}


@pytest.mark.every_database
def test_processes_that_log_somebody_in_for_the_first_time_at_once_share_one_secret(
    make_web: MakeWeb, database_url: str
) -> None:
    web = make_web(tokens=TOKENS, database_url=database_url)
    known = [EndedSessions(web.env.scheduler.runtime) for _ in range(8)]
    assert {one.secret() for one in known} == {None}
    with ThreadPoolExecutor(len(known)) as pool:
        made = set(pool.map(EndedSessions.make_secret, known))
    assert len(made) == 1
    assert {EndedSessions(web.env.scheduler.runtime).secret()} == made


def test_a_copy_of_the_database_that_becomes_one_of_its_own_accepts_no_session_of_the_first(guarded: Pages) -> None:
    guarded.log_in("reader")
    guarded.get("/schedules")
    guarded.env.scheduler.runtime.database.transact(
        lambda connection: renew_id(connection, new_uid(guarded.env.clock.now()))
    )
    guarded.env.clock.advance(FRESH)
    assert status_with(guarded, guarded.cookies["rqsched_session"]) == 303


def test_a_process_that_has_read_no_session_yet_reads_the_large_form_of_one_that_is_logged_in(
    make_web: MakeWeb,
) -> None:
    web = make_web(tokens=TOKENS)
    pages = Pages(web).log_in("reader")
    new = Web(create_app(web.env.scheduler), web.env)
    form = {**pages._headers(), "content-type": "application/x-www-form-urlencoded"}
    assert new.post("/preview", content="spec=" + "x" * 20_000, headers=form).status_code != 413


NESTED = "[" * 20_000
MALFORMED_SESSIONS = {
    "signature beyond ASCII": "WyJ4IiwxXQ==.\xe9",
    "body beyond ASCII": "\xe9.00",
    "nested body": base64.b64encode(NESTED.encode()).decode() + ".00",
    "signed nested body": _signed(NESTED),
    "signed text for a time": _signed('["reader", "tomorrow"]'),
    "signed null for a time": _signed('["reader", null]'),
    "signed infinite time": _signed('["reader", Infinity]'),
    "signed object": _signed('{"reader": 1, "x": 2}'),
    "signed number": _signed("1"),
    "signed long number": _signed(f'["reader", {"9" * 5_000}]'),
    "no dot": "WyJ4IiwxXQ==",
    "blank": " ",
}


@pytest.mark.parametrize("cookie", MALFORMED_SESSIONS.values(), ids=MALFORMED_SESSIONS)
def test_a_malformed_session_is_no_session(guarded: Pages, cookie: str) -> None:
    plant_secret(guarded.env)
    headers: Any = {"cookie": f"rqsched_session={cookie}".encode("latin-1")}
    statuses = {
        path: guarded.web.get(path, headers=headers).status_code for path in ("/", "/schedules", "/stream", "/login")
    }
    assert statuses == {"/": 303, "/schedules": 303, "/stream": 204, "/login": 200}


@pytest.mark.parametrize("value", ["\xe9" * 32, "%", "%ff%00", '"\\377"', "[" * 5_000], ids=lambda value: value[:8])
@pytest.mark.parametrize("name", [session.CSRF, session.FLASH, session.THEME, session.ZONE])
def test_a_malformed_cookie_of_another_kind_harms_no_page(pages: Pages, name: str, value: str) -> None:
    headers: Any = {"cookie": f"{name}={value}".encode("latin-1")}
    for path in ("/", "/schedules", "/login"):
        assert pages.web.get(path, headers=headers).status_code == 200


def test_every_page_has_the_strict_policy(pages: Pages) -> None:
    pages.env.create("nightly", spec=Every(MINUTE))
    for path in ("/", "/schedules", "/schedules/nightly", "/timeline", "/system", "/login", "/schedules/nope"):
        policy = pages.web.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path


def test_the_form_creates_and_edits_and_shows_what_is_refused(pages: Pages) -> None:
    fields = {
        "schedule_id": "digest", "workflow": "note",
        "kind": "cron", "timing": "0 9 * * MON", "timezone": "Europe/Berlin",
        "kwargs": '{"region": "eu"}', "labels": "team:growth", "overlap": "skip", "missed": "fire_once",
    }  # fmt: skip
    assert "New schedule" in pages.get("/schedules/new")
    refused = pages.send("/schedules", **{**fields, "timing": "61 * * * *"})
    assert refused.status_code == 422
    assert "61" in refused.text
    assert "0 9 * * MON" not in refused.text
    assert "digest is created." in pages.do("/schedules", **fields)
    handle = pages.env.scheduler.get("digest")
    assert handle.describe().kwargs == {"region": "eu"}
    assert handle.labels == {"team": "growth"}
    form = pages.get("/schedules/digest/edit")
    assert "0 9 * * MON" in form
    changed = {**fields, "timing": "0 10 * * MON", "version": "1"}
    assert "digest is saved." in pages.do("/schedules/digest/edit", **changed)
    assert handle.refresh().spec.primary_cron == "0 10 * * MON"
    stale = pages.send("/schedules/digest/edit", **{**changed, "timing": "0 11 * * MON"})
    assert stale.status_code == 409
    assert handle.refresh().spec.primary_cron == "0 10 * * MON"


def test_saving_the_form_unchanged_changes_nothing_it_does_not_show(pages: Pages) -> None:
    handle = pages.env.create(
        "kept", spec=Cron("0 2 * * *"), memo={"a": 1}, overlap="buffer_all", missed="all", missed_limit=7, priority=2
    )
    before = handle.state.definition
    form = pages.get("/schedules/kept/edit")
    assert 'value="0 2 * * *"' in form
    pages.do(
        "/schedules/kept/edit", workflow="note", kind="cron", timing="0 2 * * *", timezone="UTC",
        kwargs="{}", args="[]",
        overlap="buffer_all", missed="all",
    )  # fmt: skip
    assert handle.refresh().state.definition == before


def test_labels_and_lengths_are_shown_as_they_are_written(pages: Pages) -> None:
    handle = pages.env.create("report", labels={"team": "a", "region": "eu"}, jitter=timedelta(seconds=30), timeout=60)
    shown = pages.get("/schedules/report/edit")
    assert 'name="jitter" value="30s"' in shown
    assert ">team:a\nregion:eu</textarea>" in shown or ">region:eu\nteam:a</textarea>" in shown
    fields = {"workflow": "note", "kind": "keep", "version": str(handle.state.version)}

    pages.do("/schedules/report/edit", **fields, jitter="2m", timeout="10m", labels="team:b\r\nregion:eu")

    definition = handle.refresh().state.definition
    assert (definition.jitter, definition.timeout) == (timedelta(minutes=2), 600)
    assert handle.labels == {"team": "b", "region": "eu"}
    assert 'name="jitter" value=""' in pages.get("/schedules/new")


@pytest.mark.parametrize("typed", [{"timing": "2m"}, {"timezone": "Asia/Tokyo"}])
def test_timing_that_is_typed_beside_as_it_is_is_refused_instead_of_ignored(
    pages: Pages, typed: dict[str, str]
) -> None:
    handle = pages.env.create("report", spec=Every(HOUR))
    before = handle.state
    fields = fields_of(pages.get("/schedules/report/edit"), "/schedules/report/edit")
    assert fields["kind"] == "keep"
    answer = pages.send("/schedules/report/edit", **fields | typed)
    assert answer.status_code == 422
    assert "choose the kind of what you typed" in answer.text
    assert handle.refresh().state == before
    query = urlencode({**fields, **typed, "schedule_id": "report", "edited": "yes"})
    assert "choose the kind of what you typed" in pages.get(f"/preview?{query}")


def test_the_preview_tells_what_a_timing_means_and_when_it_fires(pages: Pages) -> None:
    shown = pages.get("/preview?kind=cron&timing=30+2+*+*+*&timezone=Europe/Berlin")
    assert "At 02:30, every day, Berlin time" in shown
    assert shown.count("<li>") == 5
    assert "is not a valid hour" in pages.get("/preview?kind=cron&timing=0+25+*+*+*&timezone=UTC")


def test_static_files_are_kept_for_ever_by_their_content(pages: Pages) -> None:
    address = pages.get("/").split('rel="stylesheet" href="')[1].split('"')[0]
    answer = pages.web.get(address)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert pages.web.get("/static/../routes.py").status_code == 404


def test_the_failed_targets_of_a_run_are_shown_and_retried_from_its_page(pages: Pages) -> None:
    env, broken = pages.env, {"c-2"}

    def remind(customer: str) -> None:
        if customer in broken:
            raise RuntimeError(f"{customer} is away")

    env.registry.add(make_workflow("remind", remind, targets=lambda: ["c-1", "c-2"]))
    run = present(env.scheduler.create("nightly", "remind", Every("1d"), fan_out="never").trigger().run)
    execute_pending(env.scheduler)
    page = pages.get(f"/runs/{run.uid}")
    assert "2 of 2 have ended" in page
    assert "RuntimeError: c-2 is away" in page
    broken.clear()
    assert "Run #1 of nightly is pending." in pages.do(f"/runs/{run.uid}/do", action="retry_failed_targets")
    execute_pending(env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 2}
    assert "retry_failed_targets" not in pages.get(f"/runs/{run.uid}")


def test_a_page_of_a_neighbouring_site_changes_nothing_with_a_session_either(guarded: Pages) -> None:
    handle = guarded.env.scheduler.get("nightly")
    operator = guarded.log_in("operator")
    operator.web.headers["sec-fetch-site"] = "same-site"
    answer = operator.send("/schedules/nightly/do", action="pause")
    assert answer.status_code == 403
    assert handle.refresh().status == "active"


def test_the_form_lists_every_option_and_changes_only_what_was_edited(pages: Pages) -> None:
    scheduler = pages.env.scheduler
    handle = scheduler.create(
        "report", "note", Every("1h"), retry={"max_retries": 1, "base": "30s"}, memo={"a": [1]},
        environments=["x", "y"], overlap="buffer_all", buffer_limit=3, target_timeout="2m",
    )  # fmt: skip
    shown = pages.get("/schedules/report/edit")
    for text in (
        'name="retry.base" value="30s"',
        'name="environments" value="x, y"',
        'name="target_timeout" value="120"',
    ):
        assert text in shown
    before = handle.state.definition
    fields = {"workflow": "note", "kind": "keep", "version": str(handle.state.version), "overlap": "buffer_all"}

    pages.do("/schedules/report/edit", **fields, **{"retry.base": "2m", "priority": "-3", "memo": ""})

    assert handle.refresh().state.policies.retry == RetryPolicy(max_retries=1, base=timedelta(minutes=2))
    assert (handle.state.definition.priority, handle.state.definition.memo) == (-3, "{}")
    assert handle.state.policies.buffer_limit == before.parsed_policies.buffer_limit == 3
    assert handle.state.policies.environments == ("x", "y")


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", "high"), ("search_attributes", "tier=3"), ("retry.factor", "two"), ("targets", "os.system")],
)
def test_a_field_of_more_options_that_is_refused_is_named_and_nothing_is_written(
    pages: Pages, field: str, value: str
) -> None:
    fields = {"schedule_id": "report", "workflow": "note", "kind": "cron", "timing": "0 2 * * *", "timezone": "UTC"}

    answer = pages.send("/schedules", **fields | {field: value})

    assert answer.status_code == 422
    assert f'name="{field}" value="{value}"' in answer.text
    assert "<details open>" in answer.text
    assert list(pages.env.scheduler.iter()) == []


def test_the_preview_leaves_out_what_is_excluded_and_says_so(pages: Pages) -> None:
    asked = "/preview?kind=cron&timing=0+9+*+*+*&timezone=UTC"
    assert ">Sat " in pages.get(asked)
    shown = pages.get(f"{asked}&exclude=Sat,+Sun%0A2026-01-16")
    assert "not on 2026-01-16, nor on Saturday and Sunday" in shown
    assert (">Sat " in shown, shown.count("<li>")) == (False, 5)
    assert "is no date, range or weekly window" in pages.get(f"{asked}&exclude=Christmas")
    assert "Every occurrence of the next ten years is excluded" in pages.get(
        "/preview?kind=cron&timing=0+9+*+*+SAT&timezone=UTC&exclude=Sat"
    )


def test_the_preview_and_the_pages_say_what_an_occurrence_was_moved_from(pages: Pages) -> None:
    asked = "/preview?kind=cron&timing=0+9+25+*+*&timezone=UTC&exclude=2026-01-25"
    assert "moved from" not in pages.get(f"{asked}&on_excluded=skip")
    shown = pages.get(f"{asked}&on_excluded=previous")
    assert "not on 2026-01-25, but on the last other day before" in shown
    assert "Sat 24 Jan" in shown
    assert "moved from Sun 25 Jan" in shown
    assert "moves Once and crons with one time of day" in pages.get(
        "/preview?kind=every&timing=15m&timezone=UTC&exclude=Sat&on_excluded=next"
    )
    lost = pages.get("/preview?kind=cron&timing=0+9+25+*+*&timezone=UTC&exclude=2026-01-25/2026-03-01&on_excluded=next")
    assert "09:00 on 2026-01-25 is excluded and skipped, because no day of the 31 days after it is free" in lost

    handle = pages.env.create("payroll", spec="0 9 25 * *", exclude="2026-01-25", on_excluded="previous")
    assert "<option selected>previous</option>" in pages.get("/schedules/payroll/edit")
    assert "Its next occurrence is moved from Sun 25 Jan, which is excluded" in pages.get("/schedules/payroll")
    run = pages.env.fire_next(handle, 10 * DAY)
    page = pages.get(f"/runs/{run.uid}")
    assert "<dt>Moved from</dt><dd>Sun 25 Jan</dd>" in page
    assert 'moved from <time datetime="2026-01-25T09:00:00Z">Sun 25 Jan 2026 09:00 UTC' in page


def test_the_form_keeps_what_is_excluded_when_the_timing_is_edited(pages: Pages) -> None:
    handle = pages.env.create("report", spec="0 9 * * *", exclude="Sat, Sun")
    shown = pages.get("/schedules/report/edit")
    assert ">Sat, Sun</textarea>" in shown
    assert 'name="timing" value="0 9 * * *"' in shown
    fields = {"workflow": handle.workflow, "kind": "cron", "timing": "0 8 * * *", "timezone": "UTC"}

    pages.do("/schedules/report/edit", **fields, exclude="Sat, Sun")
    assert handle.refresh().state.spec == Spec("0 8 * * *", exclude="Sat, Sun", dst_gap="shift")
    pages.do("/schedules/report/edit", **fields, exclude="")
    assert handle.refresh().state.spec == Spec("0 8 * * *", dst_gap="shift")


def test_the_form_says_what_is_done_about_the_clocks_and_the_preview_and_the_page_what_that_means(pages: Pages) -> None:
    told = "02:30 does not occur on 2026-03-08 in America/New_York; "
    preview = "/preview?kind=cron&timing=30+2+*+*+*&timezone=America/New_York&exclude="
    assert told + "fires at 03:30 (dst_gap=shift)" in pages.get(preview)
    assert told + "does not fire (dst_gap=skip)" in pages.get(preview + "&dst_gap=skip&dst_fold=first")
    handle = pages.env.create("report", spec="30 2 * * *", timezone="America/New_York", dst_gap="skip")
    assert "<option selected>skip</option>" in pages.get("/schedules/report/edit")

    fields = {"workflow": handle.workflow, "kind": "cron", "timing": "30 2 * * *", "timezone": "America/New_York"}
    pages.do("/schedules/report/edit", **fields, dst_gap="shift", dst_fold="both")

    spec = handle.refresh().state.spec
    assert (spec.dst_gap, spec.dst_fold) == ("shift", "both")
    assert told + "fires at 03:30 (dst_gap=shift)" in pages.get("/schedules/report")


def test_the_preview_of_the_form_needs_the_id_that_gives_the_place(pages: Pages) -> None:
    asked = "/preview?kind=cron&timing=H+2+*+*+*&timezone=UTC"
    assert "schedule_id: gives H its numbers; write it first" in pages.get(asked)
    minute = int((Spec("H 2 * * *").placed_for("default", "nightly").primary_cron or "").split()[0])
    assert f"At 02:{minute:02}, every day, UTC" in pages.get(f"{asked}&schedule_id=nightly")
    pages.env.create("nightly", "H 2 * * *")
    assert 'name="timing" value="H 2 * * *"' in pages.get("/schedules/nightly/edit")
    assert "schedule_id=nightly" in pages.get("/schedules/nightly/edit")
