"""Runs with targets over HTTP and in the client: how far they are, page by page, and the failed ones again."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from rqsched.api.run_handle import RunHandle
from rqsched.client import AsyncClient, Client
from rqsched.errors import RunStateError
from rqsched.testing import execute_pending
from rqsched.workflows import make_workflow
from tests.support.client import InProcess, client_of
from tests.support.narrow import present
from tests.support.web import Web

BROKEN: set[str] = set()


def remind(customer: str) -> None:
    if customer in BROKEN:
        raise RuntimeError(f"{customer} is away")


@pytest.fixture
def run(web: Web) -> RunHandle:
    """A run of three targets, one of which failed."""
    BROKEN.add("c-2")
    env = web.env
    env.registry.add(make_workflow("remind", remind))
    env.registry.add(make_workflow("due-customers", lambda: ["c-1", "c-2", "c-3"]))
    web.create("nightly", workflow="remind", targets="due-customers")
    found = present(env.scheduler.get("nightly").trigger().run)
    execute_pending(env.scheduler)
    return found.refresh()


def test_targets_of_a_run_are_read_by_status_and_page(web: Web, run: RunHandle) -> None:
    for path in (f"/api/v1/schedules/nightly/runs/{run.uid}/targets/", f"/api/v1/runs/{run.uid}/targets/"):
        first = web.get(path, params={"limit": 2}).json()
        assert first["progress"] == {
            "counts": {"failed": 1, "succeeded": 2},
            "total": 3,
            "ended": 3,
            "failed": 1,
            "per_second": None,
            "ends_at": None,
        }
        rest = web.get(path, params={"cursor": first["next_cursor"]}).json()
        assert [one["target_id"] for one in (*first["items"], *rest["items"])] == ["c-1", "c-2", "c-3"]
        (failed,) = web.get(path, params={"status": "failed"}).json()["items"]
        assert (failed["target_id"], failed["attempt"], failed["error"].partition("\n")[0]) == (
            "c-2",
            1,
            "RuntimeError: c-2 is away",
        )
        assert web.get(path, params={"status": "gone"}).status_code == 422


def test_only_registered_names_name_targets_over_http(web: Web, run: RunHandle) -> None:
    answer = web("PATCH", "/api/v1/schedules/nightly/", {"targets": "os.listdir"})
    assert answer.status_code == 422
    assert "no workflow named 'os.listdir' is registered" in answer.text


def test_the_client_shows_and_retries_targets(web: Web, run: RunHandle) -> None:
    client: Client = client_of(web)
    far = client.get("nightly").run(run.uid)
    assert far.progress() == run.progress()
    assert far.targets(status="failed").items == run.targets(status="failed").items
    BROKEN.clear()
    assert far.retry(failed_targets=True).status == "pending"
    execute_pending(web.env.scheduler)
    assert run.refresh().target_counts == {"succeeded": 3}
    with pytest.raises(RunStateError, match="None of its targets has failed"):
        far.retry(failed_targets=True)


def test_the_asynchronous_client_shows_targets(web: Web, run: RunHandle) -> None:
    inner = InProcess(web)

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await asyncio.to_thread(inner.handle_request, request)

    async def read() -> tuple[object, object]:
        async with AsyncClient("http://localhost", transport=Transport()) as client:
            far = await (await client.get("nightly")).run(run.uid)
            return await far.progress(), (await far.targets()).items

    assert asyncio.run(read()) == (run.progress(), run.targets().items)
