"""The workflows, which run inside the application's context."""

from __future__ import annotations

from pathlib import Path

from flask import current_app

from rqsched import workflow


@workflow("remind", timeout=30)
def remind(text: str) -> str:
    """Add a line to the reminders; put your mail or push message here."""
    with Path(current_app.config["REMINDERS"]).open("a") as lines:
        lines.write(f"{text}\n")
    return text
