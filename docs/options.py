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

Every option of `create`, `upsert` and `update`, with its default and an example. "It" is the schedule.

<!-- snippet: skip because each option has its own example below -->
```python
scheduler.create("nightly", "invoice-sync", Cron("0 2 * * *"), overlap="buffer_one", timeout="10m")
```

An option has the same name and value in each place, written like these three:

{forms}

| place | where the option is written |
|---|---|
| Python | [`Scheduler`](reference/python.md), its decorators and declarations, and the [client](http.md#the-client) |
| Django | the same, in [`schedules.py`](django.md#workflows-and-schedules) and in views |
| HTTP | a field of the body of [create, upsert and update](http.md#the-fields-of-a-schedule) |
| file | a key of a schedule in a [file of `sync`](cli.md#the-file-of-sync), in JSON, YAML or TOML |
| command | an argument of [`rqsched create`](reference/commands.md), `upsert`, `update`; Django: `manage.py rqsched` |
| editor | a field of the [dashboard's](dashboard.md) form |

A length is a `timedelta`, a number of seconds, or text such as `90s`, `1h30m` or `PT30M`. Null over HTTP, or
`--unset NAME`, sets an option back to its default.

A default `RQSCHED_...` is the project's: an environment variable, or in Django an entry of `RQSCHED` without that
prefix. It is stored with the schedule when it is created or declared, except that of `retention`. If you change the
setting later, only declared schedules get the new value, at the next `sync`.

This page is made from the table in `rqsched/kernel/decide/options.py` by `python docs/options.py`.
"""
_FORMS = ("overlap", "exclude", "retry")
"""Options with a text, a list and an object, which show how every value is written in each place."""
_PAGES = {
    "[Times](times.md)": ("timezone", "dst_gap", "dst_fold"),
    "[Holidays](holidays.md)": ("exclude", "on_excluded"),
    "[Spreading](spreading.md)": ("jitter", "spread"),
    "[Arguments](concepts.md#arguments)": ("args", "kwargs", "memo", "search_attributes"),
    "[Workers](workers.md)": ("queue", "priority"),
    "[Retries](retries.md)": ("timeout",),
    "[External workers](open-job-spec.md#execution)": ("executor",),
    "[Redis](deployment.md#how-redis-is-reached)": ("connection",),
    "[Overlap](retries.md#overlap)": ("overlap", "buffer_limit"),
    "[Missed runs](retries.md#missed-runs)": ("missed", "missed_limit", "fire_within"),
    "[Start in time](retries.md#a-run-that-starts-too-late)": ("start_within",),
    "[Pausing](pausing.md#while-it-was-paused-on_resume)": ("on_resume",),
    "[Limits](limits.md)": ("limit", "limit_running", "limit_rate"),
    "[States](concepts.md#states)": ("max_runs", "on_max_runs", "max_successes"),
    "[Environments](runbooks.md#it-is-skipped-here)": ("environments",),
    "[History](concepts.md#how-long-history-is-kept)": ("retention",),
    "[Retries](retries.md#retries); [`retry_on`](retries.md#only-some-errors)": ("retry",),
    "[Fan-out](fan-out.md)": (
        "targets",
        "max_parallel",
        "target_timeout",
        "target_retry",
        "fan_out",
        "overlap_until",
    ),
    "[Many schedules](http.md#many-schedules-at-once)": ("labels", "owner", "description"),
    "[Alerts](alerts.md)": ("on_failure", "on_recovery", "expect_duration", "notifications"),
    "[Alerts](alerts.md#a-missed-run-or-a-success-that-does-not-come)": ("expect_success_within",),
}
"""The options that each page explains."""
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
    head = _HEAD.replace("{forms}", _forms())
    return "\n".join([head, *("\n".join([f"## {group}\n", *entries]) for group, entries in groups.items())])


def _forms() -> str:
    """Return a table of how a text, a list and an object are written in each place."""
    places = zip(*(said(name).items() for name in _FORMS), strict=True)
    rows = [f"| {same[0][0]} | {' | '.join(f'`{text}`' for _, text in same)} |" for same in places]
    return "\n".join(["| place | text | list | object |", "|---|---|---|---|", *rows])


def _entry(name: str, option: Option) -> str:
    kind = "" if option.kind is Kind.CHOICE else f"{_KINDS.get(option.kind, option.kind.value)}; "
    facts = f"{kind}default {_default(name, option)}."
    facts = facts[0].upper() + facts[1:]
    if option.is_fixed:
        facts += " It is set when the schedule is created and never changed."
    if name in inspect.signature(workflow).parameters:
        facts += f" `@workflow({name}=...)` sets it for schedules that leave it out."
    written = said(name)
    shown = [f"Python: `{written['Python, Django']}`", f"command: `{written['command']}`"]
    shown.append(f"editor: {', '.join(f'*{label}*' for label in labels(name))}")
    page = next(page for page, names in _PAGES.items() if name in names)
    return f"### `{name}`\n\n{help_of(option)} {facts} {page}.\n\n{'; '.join(shown)}.\n"


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
