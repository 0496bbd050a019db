"""What runs. It registers workflows and creates nothing."""

from __future__ import annotations

from django.core.mail import send_mail

from rqsched import current_run, workflow


@workflow("send-digest", timeout=60)
def send_digest(to: str) -> str:
    """Send one digest by mail."""
    day = f"{current_run().occurrence_at:%d %B %Y}"
    send_mail(f"Your digest of {day}", "Nothing much happened.", "digests@example.org", [to])
    return day
