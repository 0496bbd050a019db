"""The page that stops a namespace: its three steps, each by itself, and who may do them."""

from __future__ import annotations

import re

import pytest

from rqsched.api.run_handle import RunHandle
from rqsched.errors import DatabaseLimitError, DatabaseUnavailableError
from rqsched.features.namespaces import chain
from rqsched.features.namespaces.chain import AT_ONCE
from tests.support.crowd import copy_run
from tests.support.damage import failing
from tests.support.env import HOUR, MINUTE, ONCE, SECOND, Env
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages, fields_of
from tests.support.servers import ValkeyServer
from tests.support.web import MakeWeb

STOP = "/namespace/stop"
WHY = "its data leaked"
BEFORE_FREEZE = "Freeze the namespace first."


def started(env: Env, schedule_id: str, *, executes: bool = False, **options: object) -> RunHandle:
    """A run that waits on its queue, or that a worker has claimed."""
    run = present(env.create(schedule_id, spec=HOUR, **options).trigger().run)
    if executes:
        env.claim(run)
    return run


def counted(page: str) -> list[str]:
    """The counts on the page: waiting runs, then running runs and how many of these have no retries."""
    return re.findall(r"<p><strong>(\d[^<]*)</strong>", page)


def status_of(run: RunHandle) -> str:
    return run.refresh().status


@pytest.mark.every_database
def test_each_step_ends_only_what_it_names(any_pages: Pages) -> None:
    env = any_pages.env
    waits, runs, once = (
        started(env, "a"),
        started(env, "b", executes=True),
        started(env, "c", executes=True, retry=ONCE),
    )
    other = started(env, "d", namespace="other")
    page = any_pages.get(f"{STOP}?namespace=default")
    assert counted(page) == ["1 run waits to begin.", "2 runs have begun; without retries: 1."]
    assert page.count(BEFORE_FREEZE) == 2
    assert any_pages.send(STOP, step="cancel", reason=WHY).status_code == 409
    assert "The namespace default is frozen." in any_pages.do(STOP, step="freeze", reason=WHY)
    assert [(one.namespace, one.reason) for one in env.scheduler.frozen()] == [("default", WHY)]
    assert (status_of(waits), status_of(runs)) == ("pending", "running")

    page = any_pages.get(f"{STOP}?namespace=default")
    assert BEFORE_FREEZE not in page
    assert 'href="/thaw"' in page
    assert "<strong>Done.</strong> 1 run cancelled." in any_pages.send(STOP, step="cancel", reason=WHY).text
    assert (status_of(waits), status_of(runs), status_of(once)) == ("cancelled", "running", "running")

    ended = any_pages.send(STOP, step="terminate", confirm="default", reason=WHY).text
    assert "<strong>Done.</strong> 2 runs terminated." in ended
    assert (status_of(runs), status_of(once), status_of(other)) == ("terminated", "terminated", "pending")
    assert counted(any_pages.get(f"{STOP}?namespace=default")) == ["0 runs wait to begin.", "0 runs have begun."]
    events = [event for name in ("a", "b") for event in env.scheduler.get(name).iter_history()]
    asked = {
        event.event_type: event.payload["command_context"] for event in events if "previous_status" in event.payload
    }
    assert {name: (by["source"], by["reason"]) for name, by in asked.items()} == {
        "RunCancelled": ("dashboard", WHY),
        "RunTerminated": ("dashboard", WHY),
    }


@pytest.mark.parametrize(("step", "fields", "told"), [
    ("freeze", {}, "write a reason"),
    ("cancel", {"reason": "  "}, "write a reason"),
    ("terminate", {"reason": WHY}, "type default, the name of the namespace"),
    ("terminate", {"reason": WHY, "confirm": "Default"}, "type default, the name of the namespace"),
], ids=lambda value: str(value))  # fmt: skip
def test_step_without_its_reason_or_the_typed_name_does_nothing(
    pages: Pages, step: str, fields: dict[str, str], told: str
) -> None:
    env = pages.env
    waits, runs = started(env, "a"), started(env, "b", executes=True)
    if step != "freeze":
        env.scheduler.freeze()
    assert f"Not done: {told}" in pages.do(STOP, step=step, **fields)
    assert (status_of(waits), status_of(runs)) == ("pending", "running")
    assert len(env.scheduler.frozen()) == (step != "freeze")


def test_step_goes_on_part_by_part_from_the_form_of_its_progress(pages: Pages) -> None:
    env = pages.env
    copy_run(env.runtime, started(env, "a"), AT_ONCE + 9)
    env.scheduler.freeze()
    first = pages.send(STOP, step="cancel", reason=WHY).text
    assert f"{AT_ONCE} runs cancelled, 10 left." in first
    fields = fields_of(first, STOP)
    assert fields["reason"] == WHY
    assert f"<strong>Done.</strong> {AT_ONCE + 10} runs cancelled." in pages.send(STOP, **fields).text
    for text in ("x", "[]", "[1, 2, 3, 4]", '[1, "1=1", 0, []]', "[" * 100_000):
        assert pages.send(STOP, **fields | {"so_far": text}).status_code == 422, text


@pytest.mark.every_database
def test_run_whose_end_raises_is_named_and_the_older_ones_end(
    any_pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "AT_ONCE", 3)
    env = any_pages.env
    old = [started(env, name) for name in "abc"]
    env.advance(SECOND)
    broken = [started(env, name) for name in "def"]
    env.advance(SECOND)
    newest = started(env, "g")
    env.scheduler.freeze()
    with failing(DatabaseLimitError("statement timeout"), *broken):
        shown = any_pages.send(STOP, step="cancel", reason=WHY).text
        assert "1 run cancelled, 4 left." in shown
        assert "2 runs could not be cancelled." in shown
        for _ in range(2):
            shown = any_pages.send(STOP, **fields_of(shown, STOP)).text
    assert "<strong>Done.</strong> 4 runs cancelled." in shown
    assert "3 runs could not be cancelled." in shown
    for run in broken:
        assert re.search(rf'/runs/{run.uid}">.*the database stopped it', shown)
    assert [status_of(run) for run in broken] == ["pending"] * 3
    assert {status_of(run) for run in (*old, newest)} == {"cancelled"}


def test_database_that_is_away_is_not_the_failure_of_one_run(pages: Pages) -> None:
    run = started(pages.env, "a")
    pages.env.scheduler.freeze()
    with failing(DatabaseUnavailableError(), run):
        assert pages.send(STOP, step="cancel", reason=WHY).status_code == 503
    assert status_of(run) == "pending"


def test_run_that_is_buffered_ends_before_the_run_ahead_of_it_so_that_it_is_never_queued(pages: Pages) -> None:
    env = pages.env
    first = started(env, "a", overlap="buffer_all")
    buffered = list[RunHandle]()
    for _ in range(3):
        env.advance(SECOND)
        buffered.append(present(env.scheduler.get("a").trigger().run))
    env.scheduler.freeze()
    pages.send(STOP, step="cancel", reason=WHY)
    assert {status_of(run) for run in (first, *buffered)} == {"cancelled"}
    assert [run.queued_at for run in buffered] == [None, None, None]


def test_counts_end_at_a_thousand(pages: Pages) -> None:
    env = pages.env
    copy_run(env.runtime, started(env, "a"), 1_200)
    copy_run(env.runtime, started(env, "b", executes=True, retry=ONCE), 1_200)
    assert counted(pages.get(STOP)) == [
        "1000+ runs wait to begin.",
        "1000+ runs have begun; without retries: 1000+.",
    ]


def test_page_asks_which_namespace_is_meant_unless_its_address_names_one(pages: Pages) -> None:
    env = pages.env
    started(env, "a")
    assert f'href="{STOP}"' in pages.get("/schedules")
    assert "the namespace of the schedules that name none" in pages.get(STOP), "there is only one"
    started(env, "b", namespace="tenant")
    asked = pages.get(STOP)
    assert "Which namespace do you want to stop?" in asked
    assert re.findall(r'<option value="([^"]*)">', asked) == ["default", "tenant"]
    assert 'name="step"' not in asked
    page = pages.get(f"{STOP}?namespace=tenant")
    assert "<h1>Stop the namespace tenant</h1>" in page
    assert "that name none" not in page
    pages.send(STOP, step="freeze", reason=WHY, namespace="tenant")
    assert [one.namespace for one in env.scheduler.frozen()] == ["tenant"]


def test_viewer_needs_the_role_and_the_namespace_of_each_step(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    waits = started(web.env, "a")
    theirs = started(web.env, "b", namespace="tenant")
    tenant, reader, operator = (Pages(web).log_in(name) for name in ("tenant", "reader", "operator"))
    assert f'href="{STOP}"' not in reader.get("/schedules")
    assert reader.get(STOP, status=403)
    assert reader.send(STOP, step="cancel", reason=WHY).status_code == 403
    assert tenant.get(f"{STOP}?namespace=default", status=404)
    assert tenant.send(STOP, step="freeze", reason=WHY, namespace="default").status_code == 404
    assert "Only somebody with the role admin may freeze it." in operator.get(f"{STOP}?namespace=default")
    assert operator.send(STOP, step="freeze", reason=WHY).status_code == 403
    assert web.env.scheduler.frozen() == []
    tenant.do(STOP, step="freeze", reason=WHY, namespace="tenant")
    tenant.send(STOP, step="cancel", reason=WHY, namespace="tenant")
    assert (status_of(waits), status_of(theirs)) == ("pending", "cancelled")
    web.env.scheduler.freeze()
    assert "1 run cancelled" in operator.send(STOP, step="cancel", reason=WHY, namespace="default").text


def test_without_redis_the_page_says_what_is_not_known_and_a_step_works(
    make_web: MakeWeb, own_valkey: ValkeyServer
) -> None:
    pages = Pages(make_web(redis_url=own_valkey.url))
    run = started(pages.env, "a")
    assert "not known whether everything is frozen" not in pages.get(STOP)
    own_valkey.kill()
    pages.env.advance(MINUTE)
    assert "not known whether everything is frozen" in pages.get(STOP)
    assert "The namespace default is frozen." in pages.do(STOP, step="freeze", reason=WHY)
    assert "<strong>It is frozen.</strong>" in pages.get(STOP)
    assert "1 run cancelled" in pages.send(STOP, step="cancel", reason=WHY).text
    assert status_of(run) == "cancelled"
