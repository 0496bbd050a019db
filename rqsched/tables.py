"""rqsched's tables, for an application whose database holds them beside its own.

Alembic's autogenerate takes tables that it does not know for ones to drop. In the application's `env.py`:

    from rqsched.tables import include_name

    context.configure(..., include_name=include_name)

`rqsched db upgrade` migrates them, with a version table of its own; they are not the application's to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rqsched.store.tables import metadata as metadata

PREFIX = "rqsched_"
"""How the name of each of our tables begins, of those of later versions too."""


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any]) -> bool:
    """Tell Alembic whether autogenerate shall compare what the database has: all but our tables.

    >>> include_name("rqsched_runs", "table", {}), include_name("orders", "table", {})
    (False, True)

    An application with a filter of its own asks both: `include_name(*given) and mine(*given)`.
    """
    del parent_names
    return type_ != "table" or name is None or not name.startswith(PREFIX)
