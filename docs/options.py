"""Write docs/options.md from the table of options: `python docs/options.py`. `tests/contract/test_docs.py` compares."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from rqsched.cli.create import flags_of
from rqsched.config import Settings
from rqsched.core.option_table import OPTIONS, Kind, Option, help_of
from rqsched.spec.duration import format_duration

PAGE = Path(__file__).parent / "options.md"
_HEAD = """# Options of a schedule

Every option of `create`, `upsert` and `update`. Each can be set everywhere: it has the name of the first column in
Python (decorators, declarations and Django's `schedules.py` included), by the [client](http.md#the-client), over
[HTTP](http.md), in a file of [`sync`](cli.md#the-file-of-sync) and in the dashboard's form; the commands have flags.
Lengths are a `timedelta`, seconds, or text such as `90s`, `1h30m` or `PT30M`. An option that is left out has its
default; null over HTTP and `--unset NAME` bring it back.

A default that is named `RQSCHED_...` is the project's: an environment variable, or in Django the entry of `RQSCHED`
without that prefix. All but the one of `retention` are stored with the schedule when it is created or declared: a
change of the setting reaches what is declared with the next `sync`, and leaves every other schedule as it is.

This page is made from the table in `rqsched/core/option_table.py` by `python docs/options.py`.
"""
_KINDS = {Kind.TEXT: "text", Kind.COUNT: "whole number", Kind.NAMES: "list of names", Kind.ARGUMENTS: "JSON list"}
_KINDS |= {Kind.OBJECT: "JSON object", Kind.ATTRIBUTES: "JSON object", Kind.LABELS: "texts by name"}


def page() -> str:
    """Return the text of the page."""
    groups: dict[str, list[str]] = {}
    for name, option in OPTIONS.items():
        groups.setdefault(option.group, []).append(_row(name, option))
    head = "| option | value | default | meaning | flags |\n|---|---|---|---|---|\n"
    tables = [f"## {group}\n\n{head}" + "\n".join(rows) for group, rows in groups.items()]
    return "\n".join([_HEAD, "\n\n".join(tables), ""])


def _row(name: str, option: Option) -> str:
    kind = _KINDS.get(option.kind, option.kind.value)
    value = f"{kind}, such as `{json.dumps(option.example)}`"
    flags = ", ".join(f"`{flag}`" for flag in flags_of(name))
    default = _default(option.default)
    if name in Settings.model_fields:
        default = f"`RQSCHED_{name.upper()}`" + ("" if default == "none" else f", which is {default}")
    return f"| `{name}` | {value} | {default} | {help_of(option)} | {flags} |"


def _default(value: Any) -> str:
    if value is None or value in ([], {}, ()):
        return "none"
    return f"`{format_duration(value) if isinstance(value, timedelta) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page())
