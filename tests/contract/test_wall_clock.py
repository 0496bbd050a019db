"""The wall clock is read in one place, `rqsched.clock`, so that every other part of the package can be given a time."""

from __future__ import annotations

import ast

from tests.contract.sources import imports_of, modules

READS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
}


def is_read(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name | ast.Attribute):
        return False
    base = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
    return (base, node.attr) in READS


def test_the_wall_clock_is_read_in_one_place() -> None:
    reads = [
        f"{module}:{node.lineno}"
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and is_read(node)
    ]
    assert [read.partition(":")[0] for read in reads] == ["rqsched.clock"], reads


def test_no_module_imports_time_time_under_a_bare_name() -> None:
    hidden = [
        i.source for m, p in modules().items() for i in imports_of(m, p) if i.target in {"time.time", "time.time_ns"}
    ]
    assert hidden == []
