"""Notifications on the command line: options, lists, deliveries, sync files and doctor."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rqsched import Every
from rqsched.features.notifications import chain as delivering
from rqsched.features.notifications import store
from rqsched.features.notifications.decide import Delivery, DeliveryKind
from rqsched.kernel.decide.ids import DeliveryJobId, new_uid
from rqsched.testing import execute_pending, run_due
from tests.support.cli import BOOM, HELLO, Cli
from tests.support.env import ONCE

TOLD = [
    "--set", f"on_failure={HELLO}", "--set", f"on_recovery={HELLO}", "--set", "expect_success_within=26h",
    "--set", "notifications.webhook=https://example.com/secret", "--set", "notifications.events=RunFailed",
    "--set", "notifications.events=RunLost", "--set", "notifications.heartbeat=https://hc-ping.com/uuid",
]  # fmt: skip


@pytest.fixture
def signing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands that may sign webhooks."""
    monkeypatch.setenv("RQSCHED_WEBHOOK_SECRET", "a secret")
    return cli


def described(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = cli("describe", "told", "-o", "json").json
    names = "on_failure", "on_recovery", "expect_success_within", "notifications"
    return {name: found[name] for name in names}


def test_every_option_is_stored_changed_and_unset(signing: Cli) -> None:
    cli = signing
    cli("create", "told", HELLO, "--every", "1h", *TOLD)
    assert described(cli) == {
        "on_failure": HELLO,
        "on_recovery": HELLO,
        "expect_success_within": 93600.0,
        "notifications": {
            "webhook": "https://example.com/...",
            "heartbeat": "https://hc-ping.com/...",
            "events": ["RunFailed", "RunLost"],
        },
    }
    cli(
        "update",
        "told",
        "--set",
        "notifications.heartbeat=https://other.example.com/x",
        "--set",
        "expect_success_within=PT1H",
    )
    changed = described(cli)
    assert changed["notifications"]["heartbeat"] == "https://other.example.com/..."
    assert changed["notifications"]["webhook"] == "https://example.com/..."
    assert changed["expect_success_within"] == 3600.0

    blank = [word for name in ("on_failure", "on_recovery", "expect_success_within") for word in ("--unset", name)]
    cli("update", "told", *blank, "--unset", "notifications")
    assert described(cli) == dict.fromkeys(changed) | {"notifications": {}}

    cli("upsert", "told", HELLO, "--every", "1h", "--set", f"on_failure={HELLO}")
    assert described(cli)["on_failure"] == HELLO
    assert "on_failure" in cli("describe", "told").out


def test_a_webhook_without_a_secret_is_refused(cli: Cli) -> None:
    refused = cli(
        "create", "told", HELLO, "--every", "1h", "--set", "notifications.webhook=https://example.com", code=2
    )
    assert "RQSCHED_WEBHOOK_SECRET" in refused.err
    assert cli.ids() == []


def test_a_sync_file_may_say_who_is_told(cli: Cli, tmp_path: Path) -> None:
    told = {"on_failure": HELLO, "expect_success_within": "26h", "notifications": {"heartbeat": "https://a.example/x"}}
    file = tmp_path / "schedules.json"
    file.write_text(json.dumps([{"schedule_id": "told", "workflow": HELLO, "interval": "1h", **told}]))

    cli("sync", str(file))
    assert "told" in cli("sync", str(file), "-o", "json").json["unchanged"]

    assert described(cli)["on_failure"] == HELLO
    assert described(cli)["notifications"] == {"heartbeat": "https://a.example/..."}


def test_schedules_are_listed_by_how_their_newest_run_ended(cli: Cli) -> None:
    for name, workflow in (("fine", HELLO), ("broken", BOOM)):
        cli("create", name, workflow, "--every", "1h", "--max-retries", "0")
        cli("trigger", name)
        execute_pending(cli.scheduler)
    assert [one["schedule_id"] for one in cli("list", "--outcome", "failed", "-o", "json").json["schedules"]] == [
        "broken"
    ]
    both = cli("list", "--outcome", "failed", "--outcome", "succeeded", "--sort", "id", "-o", "json").json["schedules"]
    assert [one["schedule_id"] for one in both] == ["broken", "fine"]
    assert "broken" in cli("bulk", "pause", "--outcome", "failed", "--dry-run").out
    assert "fine" in cli("list", "--outcome", "fine", code=2).err


def test_overdue_schedules_are_listed_and_named_by_doctor(cli: Cli) -> None:
    past = cli.past(hours=3)
    past.create("silent", HELLO, Every("9h"), expect_success_within="1h")
    past.create("fine", HELLO, Every("9h"), expect_success_within="9h")
    past.close()
    cli("recover")

    assert [one["schedule_id"] for one in cli("list", "--overdue", "-o", "json").json["schedules"]] == ["silent"]
    assert "active, no success" in cli("list").out
    [found] = [one for one in cli("doctor", "-o", "json", code=1).json["findings"] if one["check"] == "successes"]
    assert (found["level"], "default/silent" in found["detail"]) == ("warning", True)


def test_what_was_given_up_is_shown_and_found_by_doctor(cli: Cli) -> None:
    cli.scheduler.create("told", BOOM, Every("1h"), retry=ONCE, on_failure=BOOM).trigger()
    run_due(cli.scheduler)
    runtime = cli.scheduler.runtime
    for attempt in range(2, 11):
        [owed] = cli.scheduler.get("told").deliveries().items
        assert owed.attempt == attempt
        with pytest.raises(TypeError, match="boom"):
            delivering.execute(runtime, DeliveryJobId(owed.uid, attempt))

    [shown] = cli("run", "deliveries", "told", "--status", "failed", "-o", "json").json["deliveries"]
    assert (shown["kind"], shown["destination"], shown["attempt"]) == ("workflow", BOOM, 10)
    assert shown["message"]["event"] == "RunFailed"
    assert cli("run", "deliveries", "told", "-o", "jsonl").lines == [shown]
    assert "RunFailed" in cli("run", "deliveries", "told").out
    assert cli("run", "deliveries", "told", "--status", "pending").out == "No notifications.\n"
    [found] = [one for one in cli("doctor", "-o", "json", code=1).json["findings"] if one["check"] == "notifications"]
    assert (found["level"], BOOM in found["detail"]) == ("warning", True)
    assert datetime.fromisoformat(shown["created_at"]) > datetime.now(UTC) - timedelta(hours=1)


def test_a_copy_that_is_another_database_does_not_send_what_its_original_sends(cli: Cli) -> None:
    schedule = cli.scheduler.create("nightly", HELLO, Every("1h"))
    now = cli.scheduler.runtime.now()
    hook, url = DeliveryKind.WEBHOOK, "https://receiver.example/secret"
    waiting = Delivery(new_uid(now), schedule.uid, None, hook, url, "RunFailed", "{}", now, now)
    cli.scheduler.runtime.database.transact(lambda connection: store.record(connection, [waiting]))

    assert "; deleted: 1 waiting notification." in cli("db", "new-identity", "--yes").out

    assert list(schedule.deliveries().items) == []


def test_doctor_says_that_nobody_is_told_anything(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_NOTIFY", "0")
    [found] = [one for one in cli("doctor", "-o", "json").json["findings"] if one["check"] == "notifications"]
    assert (found["level"], found["detail"]) == ("warning", "Nobody is notified, because RQSCHED_NOTIFY is off here.")
