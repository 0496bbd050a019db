"""rqsched's tables, for an application whose database holds them beside its own.

Alembic's autogenerate would drop tables that it does not know. In the application's `env.py`:

    from rqsched.tables import include_name

    context.configure(..., include_name=include_name)

`rqsched db upgrade` migrates them, with a separate version table; the application must not change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqsched.kernel.store.tables import metadata as metadata

PREFIX = "rqsched_"
"""The prefix of the names of all our tables, in later versions, too."""


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any]) -> bool:
    """Return whether Alembic's autogenerate compares an object of the database: all but our tables.

    >>> include_name("rqsched_runs", "table", {}), include_name("orders", "table", {})
    (False, True)

    An application with its own filter calls both: `include_name(*given) and mine(*given)`.
    """
    del parent_names
    return type_ != "table" or name is None or not name.startswith(PREFIX)
