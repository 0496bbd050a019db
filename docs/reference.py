"""Write the pages of docs/reference/ from the code; the site's conf.py calls it, so they are never typed by hand."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

import typer.main
from fastapi.routing import APIRoute, APIRouter

from rqsched import Scheduler, durable_workflow, errors, ojs
from rqsched.api.gauges import DatabaseGauges, Memory, RedisGauges
from rqsched.cli.app import app
from rqsched.cli.command import is_common
from rqsched.config import Settings, secrets
from rqsched.durable_workflow.errors import VERSION, VERSION_HEADER
from rqsched.errors import RqschedError
from rqsched.http import create_app, dependencies, openapi
from rqsched.http import errors as http_errors
from rqsched.http.native.router import OPERATIONS
from rqsched.kernel.decide import audit
from rqsched.metrics import exposition
from rqsched.metrics.counters import Counts

PACKAGE = Path(errors.__file__).parent
MODULES = {
    "rqsched": "what an application constructs and calls",
    "rqsched.types": "the types of results and arguments, for annotations",
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
    """Return the public names of the modules, from their docstrings."""
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
    rows, hidden = [], secrets()
    documented = _documented(Settings)
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        in_file = f" It may stand in a [file](/backup.md#in-files): `RQSCHED_{name.upper()}_FILE`."
        facts = f"Default: {_shown(default)}.{in_file if name in hidden else ''}"
        rows.append(f"## `RQSCHED_{name.upper()}`\n\n{facts}\n\n{documented.get(name, '')}\n")
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
    about = (
        "An error's message says what is wrong and what to do. `except RqschedError` catches all of them, and each\n"
        "class those below it. `code` is stable: the answers of HTTP have it, and commands with `-o json`.\n"
    )
    over_http = "These exist over HTTP only; the client raises them as `ResponseError`.\n"
    return "\n".join(
        [
            "# Errors\n",
            about,
            "## Everywhere\n",
            *(_error(kind) for kind in errors_of(errors)),
            "## Over HTTP\n",
            over_http,
            *(_error(kind) for kind in errors_of(http_errors)),
        ]
    )


def errors_of(module: ModuleType) -> list[type[RqschedError]]:
    """Return the errors that a module defines, each after the one that it is a kind of."""
    own = (kind for kind in vars(module).values() if getattr(kind, "__module__", None) == module.__name__)
    return [kind for kind in own if inspect.isclass(kind) and issubclass(kind, RqschedError)]


def _error(kind: type[RqschedError]) -> str:
    above = kind.__mro__[1]
    facts = f"Code `{kind.code}`, HTTP status {kind.http_status}, exit code {kind.exit_code}."
    if issubclass(above, RqschedError):
        facts += f" It is a kind of [{above.__name__}](#{above.__name__.lower()})."
    cause, remedy = (
        _plain(inspect.getdoc(kind) or ""),
        _PAGE.sub(lambda page: f"[{page[1]}](/{page[1]}.md)", kind.remedy),
    )
    return f"### {kind.__name__}\n\n**Cause.** {cause}\n\n**What to do.** {remedy}\n\n{facts}\n"


_PAGE = re.compile(r"docs/([\w-]+)\.md")
"""A page of ours, as a message names it."""


def commands() -> str:
    """Every command with its arguments and options, those that nearly all have once."""
    root = typer.main.get_command(app)
    shared = next(one for name, one in _each("rqsched", root) if name == "rqsched create").params
    common = _table(one for one in shared if is_common(one))
    pages = (_command(name, one) for name, one in _each("rqsched", root))
    return "\n".join(["# Commands in full\n", f"Options of nearly every command:\n\n{common}", *pages])


def _each(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command and group with its words; a command is imported when it is used."""
    command = getattr(command, "loaded", command)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _each(f"{path} {name}", inner)


def _command(path: str, command: Any) -> str:
    rows = [one for one in command.params if not getattr(one, "hidden", False) and not is_common(one)]
    more = [_plain(command.epilog)] if command.epilog and path != "rqsched" else []
    return "\n\n".join([f"## {path}", _plain(command.help or ""), *([_table(rows)] if rows else []), *more]) + "\n"


def _table(parameters: Iterable[Any]) -> str:
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *map(_parameter, parameters), ""])


def _parameter(parameter: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    default = "required" if parameter.required else _shown(None if callable(value := parameter.default) else value)
    return f"| {flags} | {_cell(getattr(parameter, 'help', None) or '')} | {_cell(default)} |"


def operations() -> str:
    """Every operation of the HTTP API, from its OpenAPI document."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Scheduler(database_url=f"sqlite:///{folder}/one.db", redis_url="redis://127.0.0.1:1/0") as scheduler,
    ):
        return "\n".join(_Operations(json.loads(json.dumps(create_app(scheduler).openapi()))).page())


def role_of(method: str, path: str) -> str | None:
    """Return the role that an operation needs, as its endpoint asks for a Call; None where it asks for none."""
    roles = {get_args(kind)[1].dependency: name for name, kind in vars(dependencies).items() if _is_call(kind)}
    entries = [one.needs for one in OPERATIONS if (one.method, f"/api/v1{one.path}") == (method, path)]
    asked = [get_args(needs)[1].dependency for needs in entries] or _dependencies(method, path)
    needed = [roles[one] for one in asked if one in roles]
    return re.findall("[A-Z][a-z]+", needed[0])[0].lower() if needed else None


def _dependencies(method: str, path: str) -> list[Any]:
    """Return the dependencies of an operation that has an endpoint of its own."""
    fits = [route for route in _routes() if method in route.methods and path.endswith(route.path)]
    return [one.call for one in max(fits, key=lambda route: len(route.path)).dependant.dependencies]


def _is_call(kind: object) -> bool:
    return get_args(kind)[:1] == (dependencies.Call,)


@cache
def _routes() -> list[APIRoute]:
    """Return the routes of every module of the API, with their paths below what they are included under."""
    modules = [module for name, module in sys.modules.items() if name.startswith("rqsched.")]
    routers = [router for module in modules for router in vars(module).values() if isinstance(router, APIRouter)]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


_TAGS = {"open-job-spec": "Open Job Spec", "durable-workflow": "Durable Workflow"}
_REF = re.compile(r"#/components/schemas/(\w+)")


class _Operations:
    """The page of an OpenAPI document. A schema of one body or answer alone is shown there, others at the end."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.paths, self.schemas = document["paths"], document["components"]["schemas"]
        uses = Counter(_REF.findall(json.dumps(document)))
        own = {name for name in _REF.findall(json.dumps(self.paths)) if uses[name] == 1}
        self.shared = self.schemas.keys() - own

    def page(self) -> Iterator[str]:
        by_tag: dict[str, list[str]] = {}
        for path, methods in self.paths.items():
            for method, operation in methods.items():
                tag = (operation.get("tags") or ["other"])[0]
                by_tag.setdefault(tag, []).append("\n".join(self._operation(f"{method.upper()} {path}", operation)))
        yield "# HTTP operations\n"
        yield (
            "Each operation with its parameters, body and answers; [HTTP](/http.md) says how they belong together.\n"
            "`/openapi.json` of a server is the same for programs, and its page `/docs` for people without this site.\n"
        )
        first = "POST /api/v1/schedules/"
        yield "\n".join(["```sh", *_curl(first, _example(self.paths["/api/v1/schedules/"]["post"])), "```\n"])
        yield "## Errors of every operation\n"
        yield "An operation may also be refused with these; [Errors](/reference/errors.md) says what to do.\n"
        every = openapi.PROBLEM.of_every_route()
        yield from (f"{status}\n: {_plain(answer['description'])}\n" for status, answer in every.items())
        for tag, found in by_tag.items():
            yield "\n".join([f"## {_TAGS.get(tag, tag.capitalize())}\n", *found])
        yield "## Schemas\n"
        yield from ("\n".join(self._schema(name)) for name in sorted(self.shared))

    def _operation(self, name: str, operation: Mapping[str, Any]) -> Iterator[str]:
        yield f"### `{name}`\n\n{_plain(operation.get('description') or operation.get('summary', ''))}\n"
        if role := role_of(*name.split(" ")):
            yield f"Needs the [role](/http.md#authentication-and-roles) `{role}`.\n"
        if parameters := operation.get("parameters"):
            yield "**Parameters**\n"
            yield from (self._parameter(one) for one in parameters)
        if body := operation.get("requestBody"):
            schema = next(iter(body["content"].values()))["schema"]
            yield f"**Body:** {self._kind(schema)}\n"
            yield from self._inner(schema, is_sent=True)
        if operation.get("requestBody"):
            yield "\n".join(["```sh", *_curl(name, _example(operation)), "```\n"])
        answers = {status: one for status, one in operation["responses"].items() if not _is_of_every(status, one)}
        yield "**Answers**\n"
        for status, answer in answers.items():
            yield from self._answer(status, answer)

    def _answer(self, status: str, answer: Mapping[str, Any]) -> Iterator[str]:
        schema = next((one.get("schema") or {} for one in answer.get("content", {}).values()), {})
        told = "Done." if answer["description"] == "Successful Response" else _plain(answer["description"])
        is_error = status >= "400" or not schema
        yield f"{status}\n: {told}{'' if is_error else ' ' + self._kind(schema)}\n"
        if not is_error:
            yield from self._inner(schema, is_sent=False)

    def _inner(self, schema: Mapping[str, Any], *, is_sent: bool) -> Iterator[str]:
        """Yield the fields of the schemas that are only used here."""
        for name in dict.fromkeys(_REF.findall(json.dumps(schema))):
            if name not in self.shared:
                yield from self._fields(self.schemas[name], is_sent=is_sent)

    def _schema(self, name: str) -> Iterator[str]:
        schema = self.schemas[name]
        yield f"### `{name}`\n\n{_plain(schema.get('description', ''))}\n"
        yield from self._fields(schema, is_sent=name.endswith("Request"))

    def _fields(self, schema: Mapping[str, Any], *, is_sent: bool) -> Iterator[str]:
        for field, one in schema.get("properties", {}).items():
            facts = self._kind(one) + _default(one)
            if is_sent and field in schema.get("required", ()):
                facts += ", required"
            yield f"`{field}`: {facts}\n: {_plain(one.get('description', ''))}\n"

    def _parameter(self, one: Mapping[str, Any]) -> str:
        schema = one["schema"]
        kind = self._kind(schema).removesuffix(" or null")
        facts = f"{one['in']}, {kind}{', required' if one.get('required') else _default(schema)}"
        return f"`{one['name']}`: {facts}\n: {_plain(one.get('description', ''))}\n"

    def _kind(self, schema: Mapping[str, Any]) -> str:
        """Return how a type is said, schemas as links to where they are."""
        said = openapi.type_in_words(schema)
        return re.sub(r"\w+", lambda one: f"[{one[0]}](#{one[0].lower()})" if one[0] in self.shared else one[0], said)


def _default(schema: Mapping[str, Any]) -> str:
    return "" if schema.get("default") is None else f", default `{json.dumps(schema['default'])}`"


def _is_of_every(status: str, answer: Mapping[str, Any]) -> bool:
    """Return whether every operation of the surface may answer so."""
    surfaces = (refused.of_every_route() for refused in (openapi.PROBLEM, ojs.REFUSED, durable_workflow.REFUSED))
    codes = answer.get(openapi.CODES)
    return codes is not None and codes in (every.get(int(status), {}).get(openapi.CODES) for every in surfaces)


def _example(operation: Mapping[str, Any]) -> Any:
    """Return the example of a request's body."""
    return next(iter(operation["requestBody"]["content"].values()))["example"]


def _curl(name: str, body: Any) -> list[str]:
    """Return a request as one types it in a shell."""
    method, _, path = name.partition(" ")
    url = path.replace("{schedule_id}", "nightly").replace("{name}", "nightly").replace("{operation}", "pause")
    headers = ["Content-Type: application/json"]
    if path.startswith("/api/schedules"):
        headers.append(f"{VERSION_HEADER}: {VERSION}")
    said = "".join(f"  -H '{header}' \\\n" for header in headers)
    return [f"curl -X {method} http://127.0.0.1:8000{url} \\", f"{said}  -d '{json.dumps(body)}'"]


def observed() -> str:
    """Return what an installation shows of itself: metrics, audit events, log actions."""
    return "\n".join(["# Metrics, events and log keys\n", _metrics(), _events(), _log_actions()])


def _metrics() -> str:
    gauges: dict[str, Any] = {name: [] for name in DatabaseGauges._fields}
    nothing = DatabaseGauges(**gauges | {"went_back": set(), "refusals": 0})
    families = [
        *exposition.counter_families(Counts(), bool),
        *exposition.database_families(nothing, str, bool),
        *exposition.queues(nothing, str),
        *exposition.redis_families(RedisGauges(0, 0, Memory(0, 1, ""), {})),
        exposition.went_back(set()),
        *exposition.refused(nothing),
        exposition.up({}),
        exposition.all_frozen(False),
    ]
    rows = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ())) or "none"
        rows.append((f"`{name}`: {family.type}; labels: {labels}", [family.documentation]))
    about = "`/metrics` of a server serves them; the page on HTTP has the values of the labels."
    return _definitions("Metrics", about, rows)


def _events() -> str:
    meanings = dict(_documented_names(audit))
    names = {value: name for name, value in vars(audit).items() if isinstance(value, str) and value in audit.CONTRACT}
    rows = [
        (f"`{event}`", [meanings.get(names[event], ""), "Keys: " + ", ".join(f"`{key}`" for key in sorted(keys))])
        for event, keys in audit.CONTRACT.items()
    ]
    about = (
        "`rqsched history` and the API show them, by schedule. A payload has those of its keys that have a value, and\n"
        "`command_context` where somebody asked."
    )
    return _definitions("Audit events", about, sorted(rows))


def _documented_names(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the docstrings that stand behind the names of a module."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, text in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(text, ast.Expr):
            yield ast.unparse(statement.targets[0]), inspect.cleandoc(str(ast.literal_eval(text.value)))


def _log_actions() -> str:
    found: dict[str, set[tuple[str, str]]] = {}
    modules = [ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]
    calls = [call for module in modules for call in ast.walk(module) if isinstance(call, ast.Call)]
    for module in modules:
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for action, level, message in _logged(_Scope(module, function, calls)):
                    found.setdefault(action, set()).add((level, message))
    rows = [
        (f"`{action}`: {', '.join(sorted({level for level, _ in told}))}", sorted({text for _, text in told}))
        for action, told in sorted(found.items())
    ]
    about = "The field `action` of a log record, which stays the same when a message changes."
    return _definitions("Log keys", about, rows)


class _Scope(NamedTuple):
    """Where a name of a logging call is looked up."""

    module: ast.Module
    function: ast.FunctionDef | ast.AsyncFunctionDef
    calls: Sequence[ast.Call]
    """Every call of the package: what is passed to a parameter."""

    def values(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield what an expression may be: itself, either branch, or what its name is given."""
        if isinstance(node, ast.IfExp):
            yield from self.values(node.body)
            yield from self.values(node.orelse)
        elif isinstance(node, ast.Name):
            given = [*_assigned(self.function, node.id), *_assigned(self.module, node.id)] or self._passed(node.id)
            for value in given:
                yield from self.values(value)
        else:
            yield node

    def _passed(self, name: str) -> list[ast.expr]:
        names = [one.arg for one in self.function.args.args if one.arg != "self"]
        if name not in names:
            return []
        place, wanted = names.index(name), self.function.name
        return [one.args[place] for one in self.calls if _last_name(one.func) == wanted and len(one.args) > place]


def _assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in tree.body if isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _logged(scope: _Scope) -> Iterator[tuple[str, str, str]]:
    """Yield the action, level and message of each call of a function that logs."""
    for call in ast.walk(scope.function):
        extra = next((one.value for one in getattr(call, "keywords", ()) if one.arg == "extra"), None)
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or extra is None:
            continue
        text = call.args[1 if call.func.attr == "log" else 0]
        levels = [{"exception": "error"}.get(call.func.attr, call.func.attr)]
        if call.func.attr == "log":
            levels = [one.lower() for one in re.findall(r"logging\.([A-Z]+)", ast.unparse(scope.function))]
        for action in re.findall(r"'action': '([\w.]+)'", "".join(map(ast.unparse, scope.values(extra)))):
            for said in scope.values(text):
                if isinstance(said, ast.Constant) and said.value != "%s":
                    yield from (
                        (action, one, re.sub(r"%(\(\w+\))?[.\d]*[sdrf]", "…", _cell(str(said.value)))) for one in levels
                    )


def _definitions(title: str, about: str, rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return terms with what is said of each, which a phone shows without scrolling sideways."""
    lines = ["\n".join([term, *(f": {_cell(one)}" for one in said), ""]) for term, said in rows]
    return "\n".join([f"## {title}\n", f"{about}\n", *lines])


def _plain(text: str) -> str:
    """Return a docstring or help text as Markdown."""
    return inspect.cleandoc(text).replace("\b", "").replace("<", "&lt;")


def _cell(text: str) -> str:
    """Return a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
