"""The shape of the package: imports point from surfaces to core, never back, never inside a function, never in a ring.

A new module fails here until it is added to a layer: decide where it belongs before you write it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rqsched

PACKAGE = Path(rqsched.__file__).parent

LAYERS = (
    {"errors", "clock", "config"},
    {"spec"},
    {"core"},
    {"timing", "signals", "workflows", "embedded"},
    {"store", "transport"},
    {"chain"},
    {"api"},
    {"aio", "testing", "pytest_plugin", "jobs", "preload", "rq", "contrib"},
    {"__init__", "machines", "client", "http", "dashboard", "dev", "cli"},
)
"""The files and folders directly below `rqsched`, lowest layer first; each imports its own and those above it here."""
PURE = {"errors", "spec", "core"}
"""These import nothing but each other: no settings, no clock."""

DEFERRED_IMPORTS: dict[tuple[str, str], str] = {
    (
        "rqsched.store.schema",
        "rqsched.store.migrations.runner",
    ): "alembic costs 0.1 s of import that a current schema need not pay",
    ("rqsched.cli.processes", "rqsched.http.serve"): "the http extra is optional",
    ("rqsched.cli.machine", "rqsched.machines"): "the machines extra is optional",
}
"""(module, what it imports inside a function): why it cannot be imported at the top."""

WALL_CLOCK = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
}


@dataclass(frozen=True)
class Import:
    """One imported name: `source` imports `target`, both dotted; `is_deferred` when inside a function."""

    source: str
    target: str
    is_deferred: bool


def modules() -> dict[str, Path]:
    files = [path for path in PACKAGE.rglob("*.py") if "versions" not in path.parts]
    return {name_of(path): path for path in sorted(files)}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The file or folder directly below `rqsched` that holds a module."""
    return module.partition(".")[2].split(".")[0] or "__init__"


def layer_of(module: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part_of(module) in parts)


def imports_of(module: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text())
    deferred = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        for target in targets_of(node, package):
            yield Import(source=module, target=target, is_deferred=id(node) in deferred)


def targets_of(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    stem = ".".join([*base, *([node.module] if node.module else [])])
    return [f"{stem}.{alias.name}" for alias in node.names]


def own_imports() -> list[Import]:
    """Imports of our own modules, each target cut to the module that holds the name."""
    known = modules()
    found = [i for module, path in known.items() for i in imports_of(module, path)]
    return [
        Import(i.source, i.target if i.target in known else i.target.rpartition(".")[0], i.is_deferred)
        for i in found
        if i.target.split(".")[0] == PACKAGE.name
    ]


def is_wall_clock(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name | ast.Attribute):
        return False
    base = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
    return (base, node.attr) in WALL_CLOCK


@pytest.mark.parametrize("module", modules())
def test_every_module_belongs_to_a_layer(module: str) -> None:
    assert any(part_of(module) in parts for parts in LAYERS), f"{module} is new: add its file or folder to LAYERS"


def test_imports_point_down() -> None:
    wrong = [f"{i.source} imports {i.target}" for i in own_imports() if layer_of(i.target) > layer_of(i.source)]
    assert wrong == []


def test_spec_and_core_know_no_settings_and_no_clock() -> None:
    inner = [i for i in own_imports() if part_of(i.source) in PURE]
    assert [f"{i.source} imports {i.target}" for i in inner if part_of(i.target) not in PURE] == []


def test_sql_and_redis_do_not_know_each_other() -> None:
    pair = {"store", "transport"}
    assert [i for i in own_imports() if {part_of(i.source), part_of(i.target)} == pair] == []


def test_only_the_machines_import_python_statemachine() -> None:
    found = {i.source for m, p in modules().items() for i in imports_of(m, p) if i.target.startswith("statemachine")}
    assert found
    assert {source.rpartition(".")[0] for source in found} == {"rqsched.machines"}


def test_nothing_imports_the_public_names_from_within() -> None:
    wrong = [i.source for i in own_imports() if i.target == PACKAGE.name and layer_of(i.source) < len(LAYERS) - 1]
    assert wrong == []


def test_modules_import_each_other_in_no_ring() -> None:
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


def test_the_wall_clock_is_read_in_one_place() -> None:
    reads = [
        f"{module}:{node.lineno}"
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and is_wall_clock(node)
    ]
    assert [read.partition(":")[0] for read in reads] == ["rqsched.clock"], reads


def test_no_function_of_the_time_module_hides_behind_a_bare_name() -> None:
    hidden = [
        i.source for m, p in modules().items() for i in imports_of(m, p) if i.target in {"time.time", "time.time_ns"}
    ]
    assert hidden == []


def test_a_file_or_folder_is_in_one_layer() -> None:
    parts = [part for layer in LAYERS for part in layer]
    assert len(parts) == len(set(parts))
