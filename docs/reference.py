"""Write the pages of docs/reference/ from the code; the site's conf.py calls it, so they are never typed by hand."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

from rqsched import Scheduler, errors
from rqsched.cli.app import app
from rqsched.config import Settings
from rqsched.core import audit
from rqsched.http import create_app
from rqsched.http.metrics import exposition
from rqsched.http.metrics.counters import Counts

PACKAGE = Path(errors.__file__).parent
MODULES = {
    "rqsched": "what an application imports",
    "rqsched.workflows": "what a workflow may use around and inside a run",
    "rqsched.signals": "what an application may listen to",
    "rqsched.client": "the typed client of the HTTP API",
    "rqsched.testing": "helpers for tests of schedules",
    "rqsched.pytest_plugin": "fixtures for pytest",
    "rqsched.aio": "the scheduler and its handles with `await`",
    "rqsched.timing": "specs that are written as sentences",
    "rqsched.clock": "clocks, which tests set",
    "rqsched.config": "settings",
    "rqsched.tables": "the tables, for an application that reads them",
    "rqsched.machines": "schedules over state machines",
    "rqsched.rq": "classes for `rq worker -w`",
    "rqsched.http": "the HTTP API as an ASGI application",
    "rqsched.dashboard": "the dashboard in an application",
    "rqsched.contrib.fastapi": "FastAPI",
    "rqsched.errors": "errors; {doc}`their causes <errors>`",
    "rqsched.contrib.django_transaction": "operations in a transaction of Django",
}
"""The modules an application imports from, in the order of the reference."""


def pages() -> dict[str, str]:
    """Return the text of every page by its name."""
    return {
        "python": python(),
        "settings": settings(),
        "errors": errors_page(),
        "commands": commands(),
        "http-operations": operations(),
        "observed": observed(),
    }


def write(folder: Path) -> None:
    """Write the pages that differ from what is there: Sphinx reads again what changed."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def python() -> str:
    """The public names of the modules, from their docstrings."""
    head = "# Python\n\nEvery public name, by the module that an application imports it from.\n"
    seen: set[int] = set()
    return "\n".join([head, *(_module(name, about, seen) for name, about in MODULES.items())])


def _module(name: str, about: str, seen: set[int]) -> str:
    module = importlib.import_module(name)
    lines = [f"## {name}: {about}\n", "```{eval-rst}", f".. module:: {name}"]
    for public in public_names(module):
        value = getattr(module, public)
        if id(value) in seen or inspect.ismodule(value):
            continue
        if callable(value):
            seen.add(id(value))
        lines += ["", f".. {_directive(value)}:: {name}.{public}", *_options(value)]
    return "\n".join([*lines, "```\n"])


def public_names(module: ModuleType) -> list[str]:
    """Return what a module exports: its `__all__`, else what it defines itself without an underscore."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", own))


def _directive(value: object) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) and hasattr(value, "__name__") else "autodata"


def _options(value: object) -> list[str]:
    if not inspect.isclass(value) or value is Settings:  # settings have a page of their own
        return []
    foreign = [kind.__name__ for kind in value.__mro__ if not kind.__module__.startswith("rqsched")]
    return ["   :members:", f"   :inherited-members: {', '.join(foreign)}"]


def public_paths() -> dict[str, list[str]]:
    """Return where each public name may be imported from, by the bare name."""
    found: dict[str, list[str]] = {}
    for name in MODULES:
        for public in public_names(importlib.import_module(name)):
            found.setdefault(public, []).append(f"{name}.{public}")
    return found


def settings() -> str:
    """Every setting with its variable, type, default and meaning."""
    rows = []
    documented = _documented(Settings)
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        rows.append(f"## `RQSCHED_{name.upper()}`\n\nDefault: {_shown(default)}\n\n{documented.get(name, '')}\n")
    head = (
        "# Settings\n\nEvery setting is an environment variable, and in lower case without `RQSCHED_` a keyword of\n"
        "`Scheduler(...)` and `Scheduler.from_env(...)`. In Django it is an entry of `settings.RQSCHED`.\n"
    )
    return "\n".join([head, *rows])


def _documented(kind: type) -> dict[str, str]:
    """Return the docstrings that stand behind the fields of a class."""
    body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body[0]
    found: dict[str, str] = {}
    if not isinstance(body, ast.ClassDef):
        return found
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = inspect.cleandoc(str(ast.literal_eval(text.value)))
    return found


def _shown(value: object) -> str:
    if value is None or value in ((), {}, ""):
        return "none"
    return f"`{value}`"


def errors_page() -> str:
    """Every error with its code, status, exit code, cause and remedy."""
    rows = ["# Errors\n", "An error's message says what to do. `except RqschedError` catches all of them.\n"]
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.RqschedError):
            facts = f"Code `{kind.code}`, HTTP status {kind.http_status}, exit code {kind.exit_code}."
            rows.append(f"## {name}\n\n{facts}\n\n{_plain(inspect.getdoc(kind) or '')}\n")
    return "\n".join(rows)


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n".join(["# Commands in full\n", *_command("rqsched", typer.main.get_command(app))])


def _command(path: str, command: Any) -> Iterator[str]:
    command = getattr(command, "loaded", command)  # a command is imported when it is used
    yield f"## {path}\n\n{_plain(command.help or '')}\n"
    rows = [_parameter(one) for one in command.params if not getattr(one, "hidden", False)]
    if rows:
        yield "\n".join(["| option | meaning | default |", "|---|---|---|", *rows, ""])
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _command(f"{path} {name}", inner)


def _parameter(parameter: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    default = "" if parameter.default is None or callable(parameter.default) else f"`{parameter.default}`"
    return f"| {flags} | {_cell(getattr(parameter, 'help', None) or '')} | {_cell(default)} |"


def operations() -> str:
    """Every operation of the HTTP API, from its OpenAPI document."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Scheduler(database_url=f"sqlite:///{folder}/one.db", redis_url="redis://127.0.0.1:1/0") as scheduler,
    ):
        document = json.loads(json.dumps(create_app(scheduler).openapi()))
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            text = _cell(operation.get("description") or operation.get("summary") or "")
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).append(f"| `{method.upper()} {path}` | {text} |")
    parts = ["# HTTP operations\n", "`/openapi.json` of a server has them with every field; `/docs` tries them.\n"]
    for tag, rows in by_tag.items():
        parts.append("\n".join([f"## {tag}\n", "| operation | what it does |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def observed() -> str:
    """What an installation shows of itself: metrics, audit events, log actions."""
    return "\n".join(["# Metrics, events and log keys\n", _metrics(), _events(), _log_actions()])


def _metrics() -> str:
    nothing = exposition.DatabaseGauges([], [], [], [], [], [], [], [], went_back=set())
    families = [
        *exposition.counter_families(Counts(), bool),
        *exposition.database_families(nothing, str, bool),
        *exposition.redis_families(exposition.RedisGauges(0, 0, {})),
        exposition.went_back(set()),
        exposition.up({}),
    ]
    rows = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.append((f"`{name}`", family.type, labels, _cell(family.documentation)))
    about = "`/metrics` of a server serves them; the page on HTTP has the values of the labels."
    return _table("Metrics", about, ("metric", "type", "labels", "meaning"), rows)


def _events() -> str:
    rows = [(f"`{event}`", ", ".join(f"`{key}`" for key in sorted(keys))) for event, keys in audit.CONTRACT.items()]
    about = (
        "`rqsched history` and the API show them, by schedule. A payload has those of its keys that have a value, and\n"
        "`command_context` where somebody asked."
    )
    return _table("Audit events", about, ("event", "keys of its payload"), sorted(rows))


def _log_actions() -> str:
    found: dict[str, set[tuple[str, str]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for action in re.findall(r'"action": "(\w+)"', text):
            found.setdefault(action, set())
        for call in ast.walk(ast.parse(text)):
            for action, level, message in _logged(call):
                found.setdefault(action, set()).add((level, message))
    rows = []
    for action, messages in sorted(found.items()):
        levels = ", ".join(sorted({level for level, _ in messages if level}))
        rows.append((f"`{action}`", levels, "; ".join(sorted({text for _, text in messages if text}))))
    about = "The field `action` of a log record, which stays the same when a message changes."
    return _table("Log keys", about, ("action", "level", "message"), rows)


def _logged(call: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield the action, level and message of a call that logs and says all three itself."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    level = {"exception": "error", "log": ""}.get(call.func.attr, call.func.attr)
    for keyword in call.keywords:
        if keyword.arg == "extra" and (action := re.search(r"'action': '(\w+)'", ast.unparse(keyword.value))):
            text = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            yield action[1], level, "" if text == "%s" else re.sub(r"%(\(\w+\))?[sdr]", "…", _cell(str(text)))


def _table(title: str, about: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join([f"## {title}\n", f"{about}\n", *lines, ""])


def _plain(text: str) -> str:
    """Return a docstring or help text as Markdown."""
    return inspect.cleandoc(text).replace("\b", "").replace("<", "&lt;")


def _cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
