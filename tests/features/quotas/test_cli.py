"""Quotas on the command line: refused with an exit code, shown by `namespace usage`, told by `doctor`."""

from __future__ import annotations

import pytest

from tests.support.cli import HELLO, Cli

EVERY_HOUR = ("--every", "1h")


@pytest.fixture
def limited(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("RQSCHED_QUOTAS", '{"default": {"schedules": 1}}')
    return cli


def test_a_create_beyond_the_quota_exits_with_4_and_says_what_to_do(limited: Cli) -> None:
    limited("create", "a", HELLO, *EVERY_HOUR)
    refused = limited("create", "b", HELLO, *EVERY_HOUR, code=4)
    assert "holds 1 of at most 1 schedules" in refused.err
    assert "RQSCHED_QUOTAS" in refused.err
    limited("upsert", "b", HELLO, *EVERY_HOUR, code=4)
    assert [row["schedule_id"] for row in limited("list", "-o", "jsonl").lines] == ["a"]


def test_usage_shows_one_namespace_or_all_that_have_a_quota(limited: Cli) -> None:
    limited("create", "a", HELLO, *EVERY_HOUR)
    mine = limited("namespace", "usage", "-o", "json").json
    assert [(row["resource"], row["limit"]) for row in mine] == [("schedules", 1), ("bytes", None)]
    assert mine[0]["used"] == 1
    assert limited("namespace", "usage", "-n", "other", "-o", "jsonl").lines[0] == {
        "namespace": "other",
        "resource": "schedules",
        "used": 0,
        "limit": None,
    }
    assert [row["namespace"] for row in limited("namespace", "usage", "--all-namespaces", "-o", "json").json] == [
        "default"
    ] * 2
    assert "default" in limited("namespace", "usage").out


def test_doctor_warns_of_a_quota_that_is_nearly_used_up(limited: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limited.findings(0)["quotas"]["level"] == "ok"
    limited("create", "a", HELLO, *EVERY_HOUR, "--set", "paused=true")
    found = limited.findings(0)["quotas"]
    assert (found["level"], "default has 1 of 1 schedules" in found["detail"]) == ("warning", True)
    monkeypatch.delenv("RQSCHED_QUOTAS")
    assert limited.findings(0)["quotas"]["detail"] == "none is set"
