"""The source of the package as the contract tests read it: its modules, and what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import rqsched

PACKAGE = Path(rqsched.__file__).parent


@dataclass(frozen=True)
class Import:
    """One imported name: `source` imports `target`, both dotted; `is_deferred` when inside a function."""

    source: str
    target: str
    is_deferred: bool


def modules() -> dict[str, Path]:
    files = [path for path in PACKAGE.rglob("*.py") if "versions" not in path.relative_to(PACKAGE).parts]
    return {name_of(path): path for path in sorted(files)}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nodes_in(path: Path, *words: str) -> Iterator[ast.AST]:
    """Yield every syntax node of a file that contains one of these words. Other files are not parsed: it takes long."""
    text = path.read_text()
    if any(word in text for word in words):
        yield from ast.walk(ast.parse(text))


@cache
def imports_of(module: str, path: Path) -> tuple[Import, ...]:
    """Every import of a module; read once, for many tests ask."""
    return tuple(_imports_of(module, path))


def _imports_of(module: str, path: Path) -> Iterator[Import]:
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
