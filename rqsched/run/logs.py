"""Log to standard error: lines for people, or one JSON object per line for log collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""The fields that every record has. All other fields were given as `extra`."""


class LogLevel(StrEnum):
    """The lowest level that a process logs."""

    DEBUG = "debug"
    """Everything."""
    INFO = "info"
    """Each run that starts or ends, and what a process does."""
    WARNING = "warning"
    """Errors that are repaired or tried again."""
    ERROR = "error"
    """Errors that a person should look at."""


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    """Time, level, logger and message."""
    JSON = "json"
    """One JSON object a line."""


class JsonLines(logging.Formatter):
    """Writes a record as one line: an object with `at`, `level`, `logger`, `message` and every field of `extra`.

    A record logged within a span of OpenTelemetry has `trace_id` and `span_id`, too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object, always in one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields: dict[str, Any] = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields |= _current_span()
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def _current_span() -> dict[str, str]:
    """Return the ids of the current span; empty if OpenTelemetry is not imported or no span is current."""
    trace = sys.modules.get("opentelemetry.trace")
    span = None if trace is None else trace.get_current_span().get_span_context()
    if trace is None or span is None or not span.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(span.trace_id), "span_id": trace.format_span_id(span.span_id)}


def begin_logging(level: LogLevel, form: LogFormat) -> None:
    """Log to standard error from now on, in this process and the children that it forks.

    A process that logs already keeps its handlers.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(form is LogFormat.JSON)
    if level is not LogLevel.DEBUG:
        logging.getLogger("alembic").setLevel(logging.WARNING)
