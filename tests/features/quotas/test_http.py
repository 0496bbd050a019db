"""Quotas over HTTP: each surface refuses in its own form, and a tenant reads its own usage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rqsched import Declaration, Every
from rqsched.errors import QuotaExceededError
from rqsched.features.quotas.decide import Usage
from rqsched.kernel.decide.quota_options import Quota
from tests.support.client import asynchronous, client_of
from tests.support.openjobspec import CRON, REPORT, Ojs
from tests.support.population import ACTION, HEADERS
from tests.support.web import MINUTELY, SCHEDULES, MakeWeb, Web, at, one_token, problem

FIGURES = {"namespace": "default", "resource": "schedules", "limit": 1, "used": 1, "wanted": 1}
DURABLE = "/api/schedules"


@pytest.fixture
def full(make_web: MakeWeb) -> Web:
    """An application whose default namespace holds as many schedules as it may, one."""
    web = make_web(quotas={"*": {"schedules": 1, "bytes": "4KiB"}})
    web.create("first")
    return web


def test_the_native_surface_refuses_with_403_and_the_figures(full: Web) -> None:
    for answer in (
        full.post(SCHEDULES, {"schedule_id": "second", **MINUTELY}),
        full("PUT", at("second"), MINUTELY),
    ):
        assert problem(answer, 403, "quota_exceeded")["attributes"] == FIGURES
    grown = full("PATCH", at("first"), {"memo": {"text": "x" * 5_000}})
    assert problem(grown, 403, "quota_exceeded")["attributes"]["resource"] == "bytes"
    assert full("PUT", at("first"), MINUTELY).status_code == 200
    assert full.post(SCHEDULES, {"schedule_id": "second", **MINUTELY}, headers={"x-namespace": "other"}).is_success


def test_open_job_spec_refuses_with_403_and_a_prefixed_code_that_is_not_retryable(full: Web) -> None:
    answer = Ojs(full)("POST", CRON, REPORT)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["retryable"]) == (403, "x_quota_exceeded", False)
    assert "holds 1 of at most 1 schedules" in error["message"]
    full("DELETE", at("first"))
    assert Ojs(full)("POST", CRON, REPORT).status_code == 201
    grown = Ojs(full).patch({"args": ["x" * 5_000]})
    assert (grown.status_code, grown.json()["error"]["code"]) == (403, "x_quota_exceeded")


def test_durable_workflow_refuses_with_403_and_its_reason(full: Web) -> None:
    answer = full.post(DURABLE, {"schedule_id": "second", **ACTION}, headers=HEADERS)
    assert (answer.status_code, answer.json()["reason"]) == (403, "quota_exceeded")
    grown = full("PUT", f"{DURABLE}/first", {"memo": {"text": "x" * 5_000}}, headers=HEADERS)
    assert (grown.status_code, grown.json()["reason"]) == (403, "quota_exceeded")
    assert full("PUT", f"{DURABLE}/first", {"note": "x"}, headers=HEADERS).status_code == 200


def test_the_client_raises_the_error_of_the_in_process_api_and_reads_the_usage(full: Web) -> None:
    client = client_of(full)
    with pytest.raises(QuotaExceededError) as refused:
        client.create("second", "note", Every("1h"))
    assert {name: getattr(refused.value, name) for name in FIGURES} == FIGURES
    with pytest.raises(QuotaExceededError):
        client.sync([Declaration("second", "note", Every("1h"))])
    usage = client.namespaces.usage()
    assert usage == full.env.scheduler.namespaces.usage()
    assert usage == Usage("default", 1, usage.bytes, Quota(schedules=1, bytes=4_096))

    async def awaited() -> Usage:
        async with asynchronous(full) as far:
            return await far.namespaces.usage()

    assert asyncio.run(awaited()) == usage


def test_a_tenant_reads_its_own_usage_only(make_web: MakeWeb) -> None:
    web = make_web(
        quotas={"tenant": {"schedules": 5}}, tokens=one_token("secret-of-the-tenant", "read", namespaces=["tenant"])
    )
    tenant = web.acting_as("secret-of-the-tenant")
    found: dict[str, Any] = tenant.get("/api/v1/usage/").json()
    assert (found["namespace"], found["schedules"], found["bytes"]) == (
        "tenant",
        {"used": 0, "limit": 5},
        {"used": 0, "limit": None},
    )
    problem(tenant.get("/api/v1/usage/", headers={"x-namespace": "default"}), 404, "namespace_not_found")


def test_metrics_show_what_namespaces_with_a_quota_hold(make_web: MakeWeb) -> None:
    web = make_web(quotas={"tenant": {"schedules": 5}})
    web.post(SCHEDULES, {"schedule_id": "a", **MINUTELY}, headers={"x-namespace": "tenant"})
    text = web.get("/metrics").text
    assert 'rqsched_quota_used{namespace="tenant",resource="schedules"} 1.0' in text
    assert 'rqsched_quota_limit{namespace="tenant",resource="schedules"} 5.0' in text
    assert 'rqsched_quota_used{namespace="default"' not in text
