"""How a process logs, as lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from rqsched.run.logs import JsonLines


def written(message: str, *arguments: object, error: bool = False, **extra: Any) -> dict[str, Any]:
    info = sys.exc_info() if error else None
    record = logging.getLogger("x").makeRecord("x", logging.WARNING, __file__, 1, message, arguments, info, None, extra)
    record.created = 1_700_000_000.25
    line = JsonLines().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    del found["pid"]
    return found


def test_a_record_is_an_object_with_its_extra_fields() -> None:
    assert written("%d of %s", 2, "three", action="counted", run=None) == {
        "at": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "logger": "x",
        "message": "2 of three",
        "action": "counted",
        "run": None,
    }


def test_a_traceback_and_a_line_break_stay_in_one_line() -> None:
    try:
        raise ValueError("not\ntoday")
    except ValueError:
        found = written("two\nlines", error=True)
    assert found["message"] == "two\nlines"
    assert found["exception"].endswith("ValueError: not\ntoday")


def test_what_is_not_json_is_written_as_text() -> None:
    assert written("x", path=sys)["path"].startswith("<module 'sys'")
