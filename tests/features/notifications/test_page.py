"""Notifications in the form: they are set and changed, a secret is never shown, and no host is called unasked."""

from __future__ import annotations

from typing import Any

import pytest

from rqsched.kernel.decide.notifications import Notifications
from tests.support.pages import Pages
from tests.support.web import MakeWeb

FIELDS = {"schedule_id": "digest", "workflow": "note", "kind": "cron", "timing": "0 9 * * MON", "timezone": "UTC"}
TOLD = {
    "on_failure": "note", "on_recovery": "note", "expect_success_within": "26h", "expect_duration": "20m",
    "webhook": "https://hooks.example.com/secret", "heartbeat": "https://beats.example.com/other",
}  # fmt: skip


@pytest.fixture
def allowed(make_web: MakeWeb) -> Pages:
    """Pages where schedules may call hosts of example.com."""
    return Pages(make_web(notification_hosts=("*.example.com",), webhook_secret="of-the-webhook-0123456789"))


def told(pages: Pages) -> Notifications:
    return pages.env.scheduler.get("digest").state.definition.parsed_notifications


def test_the_form_sets_whom_to_tell_and_saving_it_unchanged_keeps_what_it_hides(allowed: Pages) -> None:
    allowed.do("/schedules", **FIELDS, **TOLD)
    created = told(allowed)
    assert (created.on_failure, created.webhook, created.heartbeat) == ("note", TOLD["webhook"], TOLD["heartbeat"])
    allowed.env.scheduler.get("digest").update(
        notifications={"webhook": TOLD["webhook"], "heartbeat": TOLD["heartbeat"], "events": ["RunLost"]}
    )
    before = told(allowed)
    form = allowed.get("/schedules/digest/edit")
    assert 'value="26h"' in form
    assert 'value="20m"' in form
    assert "secret" not in form
    shown: dict[str, Any] = {**FIELDS, **TOLD, "webhook": "https://hooks.example.com/..."}
    allowed.do("/schedules/digest/edit", **{**shown, "heartbeat": "https://beats.example.com/..."})
    assert told(allowed) == before
    allowed.do("/schedules/digest/edit", **{**shown, "heartbeat": "", "on_recovery": ""})
    after = told(allowed)
    assert (after.webhook, after.events, after.heartbeat) == (before.webhook, before.events, None)
    assert (after.on_failure, after.on_recovery) == ("note", None)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("on_failure", "os.system", "is registered"),
        ("expect_success_within", "soon", "expect_success_within"),
        ("expect_duration", "soon", "expect_duration"),
        ("webhook", "https://metadata.internal/", "RQSCHED_NOTIFICATION_HOSTS"),
        ("heartbeat", "ftp://beats.example.com/x", "must be a whole URL"),
    ],
)
def test_a_refused_notification_is_marked_and_nothing_is_created(
    allowed: Pages, field: str, value: str, reason: str
) -> None:
    answer = allowed.send("/schedules", **FIELDS, **{**TOLD, field: value})
    assert answer.status_code == 422
    assert reason in answer.text
    assert f'name="{field}" value="{value}"' in answer.text
    assert 'aria-invalid="true"' in answer.text
    allowed.get("/schedules/digest", status=404)
