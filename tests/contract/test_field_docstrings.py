"""Every field of a public dataclass and every member of a public enum says its effect, in the string below it.

An option of a command says it in its help text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.contract.sources import modules

ENUMS = {"Enum", "StrEnum", "IntEnum", "Flag", "IntFlag"}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """The public classes of the package, by dotted name."""
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield f"{module}.{node.name}", node


def last_name(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def is_enum(node: ast.ClassDef) -> bool:
    return bool(ENUMS & {last_name(base) for base in node.bases})


def has_fields(node: ast.ClassDef) -> bool:
    is_dataclass = "dataclass" in map(last_name, node.decorator_list)
    return is_dataclass or is_enum(node) or "NamedTuple" in map(last_name, node.bases)


def field_of(statement: ast.stmt, *, of_enum: bool) -> str | None:
    """The public field or member that a statement of a class declares, None when it declares none."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
    elif of_enum and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
    else:
        return None
    return None if name.startswith("_") else name


def is_docstring(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def has_help(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.keyword) and node.arg == "help" for node in ast.walk(statement))


def undocumented(node: ast.ClassDef) -> list[str]:
    documented = [
        (field_of(statement, of_enum=is_enum(node)), is_docstring(following) or has_help(statement))
        for statement, following in pairwise([*node.body, ast.Pass()])
    ]
    return [name for name, is_documented in documented if name is not None and not is_documented]


def test_every_public_field_has_a_docstring() -> None:
    missing = [f"{name}.{field}" for name, node in classes() if has_fields(node) for field in undocumented(node)]
    assert missing == []
