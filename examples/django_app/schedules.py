"""The workflows, and the schedule that always exists. Django finds this module by its name `schedules.py`."""

from __future__ import annotations

from django.core.mail import mail_admins, send_mail

from rqsched import current_run, workflow
from rqsched.contrib.django import scheduler


@workflow("send-digest", timeout=60)
def send_digest(to: str) -> str:
    """Send one digest by mail."""
    day = f"{current_run().occurrence_at:%d %B %Y}"
    send_mail(f"Your digest of {day}", "Nothing much happened.", "digests@example.org", [to])
    return day


@scheduler.cron("0 7 * * MON", timezone="Europe/Berlin")
def weekly_report() -> int:
    """Tell the administrators how many digests there are."""
    count = sum(1 for _ in scheduler.iter(workflow="send-digest"))
    mail_admins("Digests", f"{count} digests are sent.")
    return count
