"""Actions on all runs that match the filters of the runs page: the question, the progress, and what is not done."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from anyio import to_thread

from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.dashboard import frame
from rqsched.dashboard import runs as run_list
from rqsched.features.bulk import page as bulk_page
from rqsched.features.bulk import runs as bulk_runs
from tests.features.bulk.test_page import hidden
from tests.http.test_heavy_reads import Disconnectable
from tests.support.env import DAY, HOUR, ONCE, SECOND, Env, last, statuses
from tests.support.narrow import present
from tests.support.pages import TOKENS, Pages
from tests.support.web import MakeWeb

BULK = "/bulk/runs"


def waiting(env: Env, schedule_id: str = "job", count: int = 5, **options: Any) -> ScheduleHandle:
    """A schedule with so many pending runs, a second apart."""
    schedule = env.create(schedule_id, DAY, **options)
    for _ in range(count):
        present(schedule.trigger("allow_all").run)
        env.clock.advance(SECOND)
    return schedule


def ask(pages: Pages, action: str, **filters: str) -> dict[str, str]:
    """Ask for all runs that match; returns the hidden fields of the question."""
    answer = pages.send(BULK, action=action, **filters)
    assert answer.status_code == 200, answer.text
    return hidden(answer.text)


def do_all(pages: Pages, fields: dict[str, str], **choices: str) -> str:
    """Send the form of each page until the action is done, without a script; returns the last page."""
    fields |= choices
    while "cursor" in fields:
        answer = pages.send(BULK, **fields)
        assert answer.status_code == 200, answer.text
        fields = hidden(answer.text)
    assert "<strong>Done.</strong>" in answer.text
    return answer.text


@pytest.mark.every_database
def test_runs_that_match_the_page_are_cancelled_part_by_part_after_a_question(
    any_pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runs, "CHUNK", 2)
    env = any_pages.env
    schedule, other = waiting(env), waiting(env, "other", 1)
    listed = any_pages.get("/runs?status=pending&schedule=job&within=1h")
    (form,) = re.findall(rf'<form method="post" action="{BULK}".*?</form>', listed, re.DOTALL)
    assert re.findall(r'name="action" value="(\w+)"', form) == ["cancel"]
    asked = any_pages.send(BULK, action="cancel", **hidden(form))
    assert "<h1>Cancel 5 runs?</h1>" in asked.text
    assert "<bdi>schedule job, since Thu 15 Jan 2026 11:00 UTC, status pending</bdi>" in asked.text
    assert statuses(schedule) == ["pending"] * 5
    env.clock.advance(2 * HOUR)
    late = present(schedule.trigger("allow_all").run)

    fields = hidden(asked.text) | {"reason": "the bank is away"}
    first = any_pages.send(BULK, **fields).text
    assert '<progress max="5" value="2"' in first
    assert "2 of 5 so far. If you stop, these stay done." in first
    assert "2 cancelled" in first
    done = do_all(any_pages, hidden(first))

    assert "5 cancelled" in done
    assert "reason <bdi>the bank is away</bdi>" in done
    assert late.refresh().status == "pending"
    assert statuses(schedule) == ["cancelled"] * 5 + ["pending"]
    assert statuses(other) == ["pending"]
    told = last(schedule, "RunCancelled")
    assert (told["reason"], told["command_context"]["source"]) == ("the bank is away", "dashboard")
    (back,) = re.findall(r'<a class="button" href="(/runs\?[^"]*)">Runs</a>', done)
    assert "since=2026-01-15T11" in back


def test_count_of_the_runs_that_match_is_a_heavy_read_and_a_chunk_is_not(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "_PATIENCE", 0.0)
    waiting(pages.env)
    fields = ask(pages, "cancel")

    async def while_another_is_read(fields: dict[str, str]) -> httpx.Response:
        async with pages.web.app.state.rqsched.heavy_reads.admit(Disconnectable().request, "local"):
            return await to_thread.run_sync(lambda: pages.send(BULK, **fields))

    refused = asyncio.run(while_another_is_read({"action": "cancel"}))
    assert (refused.status_code, "refresh" in refused.headers) == (503, False), refused.text
    assert "5 cancelled" in asyncio.run(while_another_is_read(fields)).text


def test_what_could_not_be_done_is_named_by_reason(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_runs, "CHUNK", 4)
    monkeypatch.setattr(bulk_page, "_NAMED_RUNS", 2)
    env = pages.env
    for name, count in (("gone", 3), ("here", 2)):
        schedule = env.create(name, HOUR, retry=ONCE)
        for _ in range(count):
            env.fail_next(schedule, HOUR)
    env.scheduler.get("gone").delete()
    fields = ask(pages, "retry", status="failures")
    changed = env.scheduler.get("here").runs().items[0]
    changed.retry()
    done = do_all(pages, fields)
    assert "1 buffered" in done, "behind the run that was retried"
    assert "3 skipped" in done
    assert "3: <bdi>it is failed: Its schedule is deleted; create it again.</bdi>" in done
    assert done.count('class="id" href="/runs/') == 2
    assert "and 1 more" in done
    assert "1 no longer matched when their turn came, or were done before by this action." in done


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("", ["cancel"]), ("status=running", ["cancel"]), ("status=in_line", ["cancel"]),
        ("status=blocked", ["cancel", "retry"]), ("status=failures", ["retry"]), ("status=cancelled", ["retry"]),
        ("status=expired", ["retry"]), ("q=boom", ["retry"]), ("status=succeeded", []), ("q=boom&status=pending", []),
    ],
)  # fmt: skip
def test_each_filter_offers_what_is_possible(query: str, offered: list[str]) -> None:
    asked = dict(part.split("=") for part in query.split("&") if part)
    assert run_list.offered_for_all(asked.get("status", ""), asked.get("q", "")) == offered


def test_in_line_for_a_limit_is_a_filter_of_the_action(pages: Pages) -> None:
    env = pages.env
    schedule = waiting(env, count=3, limit="crm", limit_running=1)
    assert "2 cancelled" in do_all(pages, ask(pages, "cancel", status="in_line", limit="crm"))
    assert statuses(schedule) == ["pending", "cancelled", "cancelled"]


def test_nothing_to_do_and_too_much_to_do_are_said_and_nothing_is_asked(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no run matches for which that is possible" in pages.do(BULK, action="cancel", status="running")
    schedule = waiting(pages.env, count=3)
    monkeypatch.setattr(bulk_page, "MOST_MATCHING", 2)
    assert "more than 2 runs match" in pages.do(BULK, action="cancel")
    assert statuses(schedule) == ["pending"] * 3


def test_a_freeze_refuses_a_retry_and_not_a_cancellation(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("job", HOUR, retry=ONCE)
    env.fail_next(schedule, HOUR)
    fields = ask(pages, "retry", status="failures")
    schedule.trigger()
    env.scheduler.freeze("the bank is away")
    assert "is refused while the namespace is frozen" in pages.do(BULK, action="retry", status="failures")
    refused = pages.send(BULK, **fields)
    assert (refused.status_code, "is frozen" in refused.text) == (409, True)
    assert re.search(r'value="retry"[^>]* disabled', pages.get("/runs?status=failures"))
    assert "1 cancelled" in do_all(pages, ask(pages, "cancel"))
    assert statuses(schedule) == ["failed", "cancelled"]
    env.scheduler.thaw()
    assert "1 started" in do_all(pages, fields)


def test_roles_and_namespaces_are_respected(make_web: MakeWeb) -> None:
    web = make_web(tokens=TOKENS)
    schedule = waiting(web.env, count=2)
    foreign = waiting(web.env, "theirs", 1, namespace="tenant")
    operator, reader, tenant = (Pages(web).log_in(name) for name in ("operator", "reader", "tenant"))
    assert "all that match" not in reader.get("/runs")
    assert reader.send(BULK, action="cancel").status_code == 403
    fields = ask(operator, "cancel")
    assert reader.send(BULK, **fields).status_code == 403
    assert tenant.send(BULK, **fields).status_code == 422, "the cursor is of another namespace"
    assert tenant.send(BULK, action="cancel", namespace="default").status_code == 404
    assert "1 cancelled" in do_all(tenant, ask(tenant, "cancel"))
    assert statuses(foreign) == ["cancelled"]
    assert statuses(schedule) == ["pending"] * 2
    assert "2 cancelled" in do_all(operator, fields)


def test_hostile_fields_are_refused_before_anything_is_done_and_shown_as_text(pages: Pages) -> None:
    schedule = waiting(pages.env, count=1)
    asked = pages.send(BULK, action="cancel", schedule="<script>")
    assert "<script>" not in pages.get(asked.headers["location"]).partition("<main")[2]
    fields = ask(pages, "cancel")
    wrong: list[dict[str, str]] = [
        {"action": "terminate"}, {"action": "retry"}, {"status": "odd"}, {"status": "succeeded"}, {"within": "1y"},
        {"since": "never"}, {"cursor": ""}, {"cursor": "x~0123456789"}, {"reason": "x" * 5_000}, {"schedule": "job"},
        *({"so_far": text} for text in ("x", "3", "[1, 2]", "[{}, [1]]", '[{"a": "b"}, {}]', "[{}]", "[" * 100_000)),
        {"so_far": '[{}, {"why": [1, [["a"]]]}]'},
    ]  # fmt: skip
    for changed in wrong:
        assert pages.send(BULK, **fields | changed).status_code == 422, changed
    assert pages.send(BULK, csrf="0" * 64, **fields).status_code == 403
    assert statuses(schedule) == ["pending"]
