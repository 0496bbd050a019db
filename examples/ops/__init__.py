"""Chores of one machine, on its own data: sample it, back a database up, tend logs, deliver a report.

Importing this package registers the workflows; `schedules` says when they run.
"""

from .backup import back_up
from .logs import tend_logs
from .report import deliver_report
from .sample import sample_machine
from .schedules import schedules

__all__ = ["back_up", "deliver_report", "sample_machine", "schedules", "tend_logs"]
