"""What runs. Workers import this module, so it registers workflows and creates nothing."""

from __future__ import annotations

from pathlib import Path

from rqsched import workflow

REMINDERS = Path("reminders.txt")


@workflow("remind", timeout=30)
def remind(text: str) -> str:
    """Add a line to the reminders; put your mail or push message here."""
    with REMINDERS.open("a") as lines:
        lines.write(f"{text}\n")
    return text
