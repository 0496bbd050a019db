"""Write docs/options.md from the table of options: `python docs/options.py`. `tests/contract/test_docs.py` compares.

What the page shows of each place is tried by `tests/contract/test_options.py`.
"""

from __future__ import annotations

import inspect
import json
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

from rqsched.config import Settings
from rqsched.dashboard import editor
from rqsched.kernel.decide.options import OPTIONS, PARTS, Kind, Option, Part, help_of
from rqsched.when.duration import format_duration
from rqsched.workflows import workflow

PAGE = Path(__file__).parent / "options.md"
_HEAD = """# Options of a schedule

Every option of `create`, `upsert` and `update`: what it does, its default, and how it is written in each place where a
schedule can be created. "It" is the schedule.

<!-- snippet: skip because each option has its own example below -->
```python
scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), overlap="buffer_one", timeout="10m")
```

| place | where the option is written |
|---|---|
| Python | [`Scheduler`](reference/python.md), its decorators and declarations, and the [client](http.md#the-client) |
| Django | the same, in [`schedules.py`](django.md#workflows-and-schedules) and in views |
| HTTP | a field of the body of [create, upsert and update](http.md#the-fields-of-a-schedule) |
| file | a key of a schedule in a [file of `sync`](cli.md#the-file-of-sync), in JSON, YAML or TOML |
| command | an argument of [`rqsched create`](reference/commands.md), `upsert`, `update`; Django: `manage.py rqsched` |
| editor | a field of the [dashboard's](dashboard.md) form |

A length is a `timedelta`, a number of seconds, or text such as `90s`, `1h30m` or `PT30M`. An option that is left out
has its default. Null over HTTP, or `--unset NAME`, sets an option back to its default.

A default that is named `RQSCHED_...` is the project's: an environment variable, or in Django the entry of `RQSCHED`
without that prefix. The value is stored with the schedule when it is created or declared, except that of `retention`.
If you change the setting later, declared schedules get the new value at the next `sync`; other schedules keep theirs.

This page is made from the table in `rqsched/kernel/decide/options.py` by `python docs/options.py`.
"""
_KINDS = {Kind.TEXT: "text", Kind.COUNT: "whole number", Kind.NAMES: "list of names", Kind.ARGUMENTS: "JSON list"}
_KINDS |= {Kind.TEXTS: "text or list of texts"}
_KINDS |= {Kind.OBJECT: "JSON object", Kind.ATTRIBUTES: "JSON object", Kind.LABELS: "texts by name"}
_REPEATED = {Kind.NAMES: "{1}", Kind.TEXTS: "{1}", Kind.LABELS: "{0}={1}"}
"""How each value of a flag is written that may be repeated."""


def page() -> str:
    """Return the text of the page."""
    groups: dict[str, list[str]] = {}
    for name, option in OPTIONS.items():
        groups.setdefault(option.group, []).append(_entry(name, option))
    return "\n".join([_HEAD, *("\n".join([f"## {group}\n", *entries]) for group, entries in groups.items())])


def _entry(name: str, option: Option) -> str:
    facts = f"{_KINDS.get(option.kind, option.kind.value).capitalize()}; default {_default(name, option)}."
    if option.is_fixed:
        facts += " It is set when the schedule is created and never changed."
    if name in inspect.signature(workflow).parameters:
        facts += f" `@workflow({name}=...)` sets it for every schedule of a workflow that leaves it out."
    rows = [f"| {place} | `{text}` |" for place, text in said(name).items()]
    rows.append(f"| editor | {' and '.join(f'*{label}*' for label in labels(name))} |")
    table = "\n".join(["| place | written as |", "|---|---|", *rows])
    return f"### `{name}`\n\n{help_of(option)}\n\n{facts}\n\n{table}\n"


def said(name: str) -> dict[str, str]:
    """Return how the example of an option is written in each place."""
    value = OPTIONS[name].example
    return {
        "Python, Django": f"{name}={json.dumps(value)}",
        "HTTP, file in JSON": f'"{name}": {json.dumps(value)}',
        "file in TOML": f"{name} = {_toml(value)}",
        "command": _command(name, value),
    }


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def _command(name: str, value: Any) -> str:
    if name in PARTS:
        return " ".join(_words(f"{name}.{part}", PARTS[name][part], one) for part, one in value.items())
    return _words(name, OPTIONS[name], value)


def _words(name: str, option: Option | Part, value: Any) -> str:
    form = _REPEATED.get(option.kind)
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    texts = [_text(value)] if form is None else [form.format(key, one) for key, one in pairs]
    if option.flags:
        return " ".join(f"{option.flags[0]} {shlex.quote(text)}" for text in texts)
    return " ".join(f"--set {shlex.quote(f'{name}={text}')}" for text in texts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def labels(name: str) -> list[str]:
    """Return what the fields of an option are called in the dashboard's form."""
    listed = {field.name: field.label for fields in editor._groups(is_new=True).values() for field in fields}
    parts = PARTS.get(name, ())
    fields = [name, *(f"{name}.{part}" for part in parts), *(part for part in parts if part not in OPTIONS)]
    known = editor.LABELS | listed
    return [known[field] for field in fields if field in known]


def _default(name: str, option: Option) -> str:
    value = option.default
    text = f"`{format_duration(value) if isinstance(value, timedelta) else value}`"
    default = "none" if value is None or value in ([], {}, ()) else text
    if name in Settings.model_fields:
        return f"`RQSCHED_{name.upper()}`" + ("" if default == "none" else f", which is {default}")
    return default


if __name__ == "__main__":
    PAGE.write_text(page())
