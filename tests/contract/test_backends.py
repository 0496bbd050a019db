"""Each backend is known in one place.

SQL is in `kernel/store`, `kernel/queries` and the `store` of a feature, the names of Redis keys in
`kernel/transport/redis_keys.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from tests.contract.sources import imports_of, modules, nodes_in
from tests.contract.test_layers import part_of

ROWS = ("rqsched.kernel.store.tables", "rqsched.kernel.store.rows")
"""Modules from which statements are built. Code outside the store calls functions of the store instead."""
PUBLIC_TABLES = "rqsched.tables"
"""It only names the tables to an application's Alembic."""
CONNECTIONS = {"connection", "c"}
"""Names of SQL connections, in functions and in lambdas."""
REDIS_KEY = re.compile(r"rqsched:\w")


def is_of_the_store(module: str) -> bool:
    return (
        part_of(module) in {"kernel.store", "kernel.queries", "store"} or module == "rqsched.importers.foreign_tables"
    )


def outside(is_inside: Callable[[str], bool], *words: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every syntax node of the modules outside a part that have one of these words, with the module's name."""
    for module, path in modules().items():
        if not is_inside(module):
            yield from ((module, node) for node in nodes_in(path, *words))


def imported_outside_the_store() -> list[tuple[str, str]]:
    found = [i for module, path in modules().items() for i in imports_of(module, path)]
    return [(i.source, i.target) for i in found if not is_of_the_store(i.source)]


def test_only_the_store_imports_sqlalchemy_and_alembic() -> None:
    libraries = ("sqlalchemy", "alembic", "sqlite3", "psycopg")
    assert [pair for pair in imported_outside_the_store() if pair[1].split(".")[0] in libraries] == []


def test_only_the_store_knows_tables_and_rows() -> None:
    found = [pair for pair in imported_outside_the_store() if pair[1].startswith(ROWS)]
    assert [pair for pair in found if pair[0] != PUBLIC_TABLES] == []


def test_only_the_store_executes_statements() -> None:
    executed = [
        f"{module}:{node.lineno}"
        for module, node in outside(is_of_the_store, "exec_driver_sql", "execute")
        if isinstance(node, ast.Attribute)
        and (
            node.attr == "exec_driver_sql"
            or (node.attr == "execute" and isinstance(node.value, ast.Name) and node.value.id in CONNECTIONS)
        )
    ]
    assert executed == []


def test_only_one_module_names_redis_keys() -> None:
    named = [
        f"{module}:{node.lineno} {node.value!r}"
        for module, node in outside(lambda module: module == "rqsched.kernel.transport.redis_keys", "rqsched")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and REDIS_KEY.match(node.value)
    ]
    assert named == []
