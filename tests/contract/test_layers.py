"""Imports point down only, never in a ring, and stand at the top of a module. The kernel knows no feature.

A file of a feature belongs to the layer of its kind: a feature's `store` stands beside the kernel's. A new file or
folder fails here until it is added to LAYERS or KINDS; docs/architecture.md explains them.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

from tests.contract.sources import PACKAGE, Import, imports_of, modules

LAYERS = (
    {"errors", "clock", "kernel.patience", "kernel.fork_guard", "run.pid_one"},
    {"when"},
    {"kernel", "kernel.decide", "decide"},
    {"config", "timing", "signals", "workflows", "embedded"},
    {"kernel.store", "kernel.queries", "kernel.transport", "store"},
    {"features", "features.list", "kernel.chain", "chain"},
    {"api", "simulate", "run"},
    {"aio", "testing", "pytest_plugin", "jobs", "preload", "rq", "tables", "types"},
    {"importers"},
    {"__init__", "__main__", "machines", "client", "http", "ojs", "durable_workflow", "metrics", "dashboard", "dev"}
    | {"cli", "contrib", "surface"},
)
"""The files and folders of `rqsched`, and the kinds of files of features; lowest layer first."""
PLACED = frozenset().union(*LAYERS)
KINDS = {
    "decide": ("decide", "progress", "lines", "report"),
    "store": ("store", "rate_starts", "timeline"),
    "chain": (
        *("chain", "upstreams", "dispatch", "execution", "run_end", "jobs"),
        *("sender", "outbox", "timed_http", "watching"),
    ),
    "api": ("api", "declarations", "runs", "sources", "recurrence_rule"),
    "surface": ("http", "cli", "load_cli", "upcoming_cli", "page", "text", "export", "schedule_file"),
}
"""The files of features, of the simulation and of the machines, by the layer that they belong to."""
PURE = {"errors", "when", "kernel", "kernel.decide", "decide"}
"""These import nothing but each other: no settings, no clock."""

DEFERRED_IMPORTS: dict[tuple[str, str], str] = {
    (
        "rqsched.kernel.store.schema_version",
        "alembic.command",
    ): "alembic costs 0.1 s that a current schema need not pay",
    ("rqsched.kernel.store.schema_version", "alembic.config.Config"): "as above",
    ("rqsched.kernel.store.database", "rqsched.kernel.store.postgres"): "the postgres extra is optional",
    ("rqsched.kernel.store.shared_engine", "rqsched.kernel.store.postgres.escape_texts"): "as above",
    (
        "rqsched.kernel.store.database",
        "rqsched.kernel.store.privileges",
    ): "a process whose database refuses nothing never asks",
    ("rqsched.features.list", "rqsched.features.tracing.chain.Tracing"): "the otel extra is optional",
    ("rqsched.cli.processes", "rqsched.http.serve"): "the http extra is optional",
    ("rqsched.errors", "importlib.metadata"): "sixty milliseconds that one message needs",
    ("rqsched.contrib.fastapi", "rqsched.http.native.router.answer_error"): "the http extra is optional",
    ("rqsched.dev.run", "rqsched.dashboard.routes.routes"): "the dashboard extra is optional",
    ("rqsched.dev.run", "rqsched.http.create_app"): "the http extra is optional",
    ("rqsched.dev.run", "rqsched.http.run_server"): "the http extra is optional",
    ("rqsched.dev.run", "uvicorn"): "the http extra is optional",
    ("rqsched.dashboard.mount", "a2wsgi.ASGIMiddleware"): "the wsgi extra is optional",
    ("rqsched.http.app", "rqsched.dashboard.frame.show_unrouted"): "the dashboard extra is optional",
    ("rqsched.http.app", "rqsched.dashboard.frame.show_too_large"): "the dashboard extra is optional",
    ("rqsched.http.app", "rqsched.dashboard.routes.routes"): "the dashboard extra is optional",
    ("rqsched.http.app", "rqsched.dashboard.session.sessions"): "the dashboard extra is optional",
    ("rqsched.client.requests", "rqsched.when.spec.Spec"): "a client that sends no spec need not load croniter",
    ("rqsched.embedded", "redis"): "`rqsched list` and completion, which ask this file for a URL, need no Redis: 0.1 s",
    ("rqsched.cli.command", "rqsched.api.scheduler.Scheduler"): "as above, and for the help of every command",
    ("rqsched.cli.command", "redis.exceptions.RedisError"): "as above",
    ("rqsched.cli.command", "rqsched.api.outages.explain"): "as above",
    ("rqsched.cli.command", "rqsched.api.outages.advice_for"): "as above",
    ("rqsched.cli.schedules", "rqsched.api.build_description.describe"): "a table of schedules needs no description",
    ("rqsched.cli.schedules", "rqsched.api.build_description.describe_run"): "as above",
    ("rqsched.cli.arguments", "rqsched.api.workflows"): "for completion only",
    (
        "rqsched.api.list_filters",
        "rqsched.kernel.queries.run_pages.RunFilters",
    ): "a list of schedules needs no queries of runs",
    ("rqsched.machines.cli", "rqsched.machines"): "the machines extra is optional",
    ("rqsched.features.declarations.schedule_file", "yaml"): "the yaml extra is optional",
    ("rqsched.features.declarations.schedule_file", "tomlkit"): "most commands write no TOML",
    ("rqsched.cli.output", "rich.console.Console"): "most commands are called by scripts, for which nothing is drawn",
    ("rqsched.cli.output", "rich.box"): "for terminals only",
    ("rqsched.cli.output", "rich.table.Table"): "for terminals only",
    ("rqsched.cli.output", "rich.text.Text"): "for terminals only",
    ("rqsched.cli.output", "rich.progress"): "for terminals only",
    (
        "rqsched.kernel.store.dialect",
        "sqlalchemy.dialects.postgresql",
    ): "a process has one database, and they load slowly",
    ("rqsched.kernel.store.dialect", "sqlalchemy.dialects.sqlite"): "as above",
    ("rqsched.kernel.store.dialect", "sqlalchemy.dialects.postgresql.JSONB"): "as above",
    ("rqsched.features.freeze.api", "rqsched.features.freeze.chain"): "most commands and requests need none of it",
    (
        "rqsched.api.background_reconcile",
        "rqsched.kernel.chain.reconcile.passes.recover",
    ): "as in api.scheduler",
    ("rqsched.run.keeper", "rqsched.config.export"): "a keeper that is started anew holds 12 MB instead of 50",
    ("rqsched.run.keeper", "rqsched.run.worker.dispatch"): "as above",
    ("rqsched.run.keeper", "rqsched.run.worker.open_runtime"): "as above",
    (
        "rqsched.api.scheduler",
        "rqsched.kernel.chain.tick",
    ): "thirty modules that most commands and requests do not need",
    ("rqsched.api.schedule_handle", "rqsched.api.why.why"): "as above",
    ("rqsched.api.scheduler", "rqsched.kernel.chain.reconcile.passes"): "as above",
    ("rqsched.api.scheduler", "rqsched.kernel.chain.resync.resync_redis"): "as above",
    ("rqsched.api.scheduler", "rqsched.simulate.api"): "as above",
    ("rqsched.api.scheduler", "rqsched.simulate.entries"): "as above",
}
"""(module, what it imports inside a function): why it cannot be imported at the top."""


def part_of(module: str) -> str:
    """Return the part of LAYERS that a module belongs to, and its own name if there is none."""
    first, *rest = module.split(".")[1:] or ["__init__"]
    two = ".".join([first, *rest[:1]])
    if two in PLACED:
        return two
    kind = next((part for part, kinds in KINDS.items() if rest and rest[-1] in kinds), None)
    if first == "features":
        is_package = len(rest) == 1 and (PACKAGE / first / rest[0]).is_dir()
        return first if is_package else kind if kind and len(rest) == 2 else module
    if kind in {"decide", "store", "surface"} and first in {"machines", "simulate"}:
        return kind
    return module if first == "kernel" else first


def layer_of(module: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part_of(module) in parts)


def own_imports() -> list[Import]:
    """Imports of our own modules, each target cut to the module that holds the name."""
    known = modules()
    found = [i for module, path in known.items() for i in imports_of(module, path)]
    return [
        Import(i.source, i.target if i.target in known else i.target.rpartition(".")[0], i.is_deferred)
        for i in found
        if i.target.split(".")[0] == PACKAGE.name
    ]


def test_every_module_belongs_to_a_layer() -> None:
    assert [module for module in modules() if part_of(module) not in PLACED] == [], "add it to LAYERS or KINDS"


def test_a_file_that_neither_layers_nor_kinds_name_belongs_to_no_layer() -> None:
    new = (
        "features.limits.anything",
        "features.limits.folder.chain",
        "features.anything",
        "kernel.folder.x",
        "folder.x",
    )
    assert [module for module in new if part_of(f"rqsched.{module}") in PLACED] == []


def test_each_kind_is_that_of_a_file() -> None:
    of_kinds = {module.rpartition(".")[2] for module in modules() if part_of(module) in KINDS}
    assert {stem for stems in KINDS.values() for stem in stems} - of_kinds == set()


def test_each_part_is_that_of_a_module() -> None:
    assert PLACED - {part_of(module) for module in modules()} == set()


def test_imports_point_down() -> None:
    wrong = [f"{i.source} imports {i.target}" for i in own_imports() if layer_of(i.target) > layer_of(i.source)]
    assert wrong == []


def test_pure_modules_know_no_settings_and_no_clock() -> None:
    inner = [i for i in own_imports() if part_of(i.source) in PURE]
    assert [f"{i.source} imports {i.target}" for i in inner if part_of(i.target) not in PURE] == []


def test_sql_and_redis_do_not_know_each_other() -> None:
    sql = {"kernel.store", "kernel.queries", "store"}
    pairs = [{part_of(i.source), part_of(i.target)} for i in own_imports()]
    assert [pair for pair in pairs if "kernel.transport" in pair and pair & sql] == []


def test_only_the_machines_import_python_statemachine() -> None:
    found = {i.source for m, p in modules().items() for i in imports_of(m, p) if i.target.startswith("statemachine")}
    assert found
    assert {source.rpartition(".")[0] for source in found} == {"rqsched.machines"}


def test_only_the_outermost_layer_imports_the_public_names() -> None:
    wrong = [i.source for i in own_imports() if i.target == PACKAGE.name and layer_of(i.source) < len(LAYERS) - 1]
    assert wrong == []


def test_modules_do_not_import_each_other_in_a_ring() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for i in own_imports():
        if i.source != i.target:
            graph[i.source].add(i.target)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import ring: {' <- '.join(error.args[1])}")


def test_imports_stand_at_the_top_of_a_module() -> None:
    deferred = {
        (module, i.target) for module, path in modules().items() for i in imports_of(module, path) if i.is_deferred
    }
    assert deferred == set(DEFERRED_IMPORTS), "import at the top, or add it to DEFERRED_IMPORTS with the reason"


def test_every_file_or_folder_is_in_one_layer_only() -> None:
    parts = [part for layer in LAYERS for part in layer]
    assert len(parts) == len(set(parts))
