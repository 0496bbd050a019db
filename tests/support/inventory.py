"""The package's interfaces and storage, one per line: `python -m tests.support.inventory --against REV` compares them.

A change of structure must lose nothing. Each line is something users may rely on: a name with its signature, an
option of a command, an endpoint, a setting, an error, an event, a metric, a column, a key. Further lines are the SQL
of one fire, its claim and its end. Without `--against` all lines are printed; `--tests` adds the ids of the tests. The
other revision is read in its own worktree.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

TREE = Path.cwd()
PACKAGE = TREE / "rqsched"
MODULES = (
    "", ".aio", ".client", ".clock", ".config", ".contrib.django", ".contrib.django_transaction", ".contrib.fastapi",
    ".dashboard", ".errors", ".http", ".jobs", ".machines", ".preload", ".pytest_plugin", ".rq", ".signals", ".tables",
    ".testing", ".timing", ".types", ".workflows",
)  # fmt: skip
"""The modules an application imports from."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.inventory", description=__doc__)
    parser.add_argument(
        "--against", metavar="REV", help="print what differs from this revision; ends with 1 if anything does"
    )
    parser.add_argument("--tests", action="store_true", help="the ids of the tests, too")
    given = parser.parse_args()
    found = [*lines(), *(test_ids() if given.tests else ())]
    if given.against is None:
        print("\n".join(found))
        return 0
    with _worktree(given.against) as tree:
        command = [sys.executable, str(Path(__file__).resolve()), *(["--tests"] if given.tests else [])]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        run = subprocess.run(command, cwd=tree, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    changed = [*difflib.unified_diff(run.stdout.splitlines(), found, given.against, "now", n=0, lineterm="")]
    print("\n".join(changed))
    return 1 if changed else 0


def lines() -> Iterator[str]:
    """Yield every line, sorted within its kind."""
    for kind in (names, commands, endpoints, settings, errors, words_of_source, columns, keys, round_trips):
        yield from sorted({_one_line(line) for line in kind()})


def _one_line(text: str) -> str:
    """Return a text on one line, without addresses and modules of objects, so that equal trees give equal lines."""
    return re.sub(r" at 0x[0-9a-f]+|, module='rqsched\.[\w.]+'", "", " ".join(text.split()))


def names() -> Iterator[str]:
    """Yield the public names of the modules, with signatures and the public members of classes."""
    for suffix in MODULES:
        try:
            module = importlib.import_module(f"rqsched{suffix}")
        except Exception as error:  # noqa: BLE001 - a module that needs a project of its own says so
            yield f"name rqsched{suffix}: {type(error).__name__}"
            continue
        for name in getattr(module, "__all__", None) or _own_names(module):
            value = getattr(module, name, None)
            yield f"name rqsched{suffix}.{name}{_signature(value)}"
            if inspect.isclass(value):
                yield from (f"name rqsched{suffix}.{name}.{member}" for member in _members(value))


def _own_names(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        return ""


def _members(kind: type) -> Iterator[str]:
    for name in dir(kind):
        if not name.startswith("_"):
            yield name + _signature(getattr(kind, name, None))
    annotations = getattr(kind, "__annotations__", {})
    yield from (f"{name}: {annotation}" for name, annotation in annotations.items() if not name.startswith("_"))


def commands() -> Iterator[str]:
    """Yield every option and argument of every command."""
    typer_main = importlib.import_module("typer.main")
    yield from _parameters("rqsched", typer_main.get_command(importlib.import_module("rqsched.cli.app").app))


def _parameters(path: str, command: Any) -> Iterator[str]:
    command = getattr(command, "loaded", command)  # a command is imported when it is used
    yield f"command {path}: {command.help or ''}".rstrip()
    for parameter in command.params:
        flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"command {path} {flags}: {getattr(parameter, 'help', None) or ''} [{parameter.default!r}]"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _parameters(f"{path} {name}", inner)


def endpoints() -> Iterator[str]:
    """Yield every leaf of the OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler_module = importlib.import_module("rqsched.api.scheduler")
        scheduler = scheduler_module.Scheduler(
            database_url=f"sqlite:///{folder}/one.db", redis_url="redis://127.0.0.1:1/0"
        )
        document = importlib.import_module("rqsched.http").create_app(scheduler).openapi()
        scheduler.close()
    yield from _leaves("openapi", json.loads(json.dumps(document)))


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path} {name}", inner)
    elif isinstance(value, list) and value and not all(isinstance(one, str | int | None) for one in value):
        for number, inner in enumerate(value):
            name = inner.get("name", number) if isinstance(inner, dict) else number
            yield from _leaves(f"{path} [{name}]", inner)
    else:
        yield f"{path} = {json.dumps(value)}"


def settings() -> Iterator[str]:
    """Yield the settings with their defaults."""
    for name, field in importlib.import_module("rqsched.config").Settings.model_fields.items():
        yield f"setting {name}: {field.annotation} = {field.default!r}"


def errors() -> Iterator[str]:
    """Yield the errors with their codes and bases."""
    module = importlib.import_module("rqsched.errors")
    for name, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module.__name__:
            bases = ", ".join(base.__name__ for base in value.__mro__[1:])
            yield f"error {name} {getattr(value, 'code', '')}: {bases}"


def words_of_source() -> Iterator[str]:
    """Yield what only the source says: log actions, metrics, audit events, exit codes, stored job paths."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        yield from (f"log action {word}" for word in re.findall(r'"action": "(\w+)"', source))
        yield from (f"metric {word}" for word in re.findall(r'"(rqsched_\w+)"', source))
        yield from (f"stored path {word}" for word in re.findall(r'"(rqsched\.jobs\.[\w.]+)"', source))
        if path.parent.name == "cli":
            yield from (f"exit code {word}" for word in re.findall(r"^([A-Z_]+ = \d+)$", source, re.MULTILINE))
    for name, value in vars(_of_kernel("decide.audit", "core.audit")).items():
        if name.isupper() and isinstance(value, str):
            yield f"audit event {value}"


def _of_kernel(name: str, before: str) -> Any:
    """Import a module of the kernel; `before` is its name in revisions without a kernel."""
    is_there = (PACKAGE / "kernel").is_dir()
    return importlib.import_module(f"rqsched.kernel.{name}" if is_there else f"rqsched.{before}")


def columns() -> Iterator[str]:
    """Yield tables, columns, indexes and constraints."""
    metadata = _of_kernel("store.tables", "store.tables").metadata
    for table in metadata.tables.values():
        yield from (f"column {table.name}.{one.name} {one.type!r} {one.nullable}" for one in table.columns)
        yield from (f"index {table.name} {one.name} {one.unique} {one.expressions!s}" for one in table.indexes)
        yield from (f"constraint {table.name} {type(one).__name__} {one.name}" for one in table.constraints)


def keys() -> Iterator[str]:
    """Yield the keys in Redis."""
    for name, function in vars(_of_kernel("transport.redis_keys", "transport.redis_keys")).items():
        if inspect.isfunction(function):
            words = [f"<{word}>" for word in inspect.signature(function).parameters]
            yield f"redis key {name}: {function(*words)}"


def round_trips() -> Iterator[str]:
    """Yield the statements of one fire, its claim and its end on each database, in order.

    A runner executes the run in this process. A BEGIN or COMMIT is a line where it is sent: not around a statement
    alone. `walk` fires twice, and the second fire is kept.
    """
    walk: Any = importlib.import_module("tests.support.walk")
    sent, watched = list[str](), walk._watched

    @contextmanager
    def watched_anew() -> Iterator[Any]:
        sent.clear()
        with watched() as taken:
            yield taken
        kept[:] = sent

    kept = list[str]()
    walk._watched = watched_anew
    _note_what_is_sent(sent.append)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey = stack.enter_context(walk.servers.valkey(folder))
        postgres = stack.enter_context(walk.servers.postgres())
        for kind, url in {"sqlite": f"sqlite:///{folder}/one.db", "postgres": postgres.create_database()}.items():
            with closing(walk.Database(url)) as database:
                walk.schema_version.upgrade(database)
            walk.Redis.from_url(valkey.url).flushall()
            walk.walk(url, valkey.url, "runner")
            yield from (f"sql of a fire on {kind} {number:02}: {text}" for number, text in enumerate(kept, 1))


def _note_what_is_sent(note: Callable[[str], object]) -> None:
    """Note each statement, BEGIN and COMMIT of any engine of this process."""

    def note_unless_alone(word: str, connection: Any) -> None:
        is_alone = getattr(connection.connection.driver_connection, "autocommit", None) is True
        is_said = word == "BEGIN" and connection.dialect.name == "sqlite"  # there it is a statement
        if not is_alone and not is_said:
            note(word)

    sqlalchemy = importlib.import_module("sqlalchemy")
    for word in ("BEGIN", "COMMIT", "ROLLBACK"):
        sqlalchemy.event.listen(sqlalchemy.Engine, word.lower(), partial(note_unless_alone, word))
    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", lambda *given: note(given[2]))


def test_ids() -> list[str]:
    """Return the ids of all tests, the nightly ones among them, in order."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=TREE, check=True, text=True, stdout=subprocess.PIPE)
    return sorted(f"test {line}" for line in run.stdout.splitlines() if "::" in line)


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    """A checkout of another revision."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "rqsched"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    sys.path.insert(0, str(TREE))
    sys.exit(main())
