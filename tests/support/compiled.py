"""Statements that SQLAlchemy has compiled, shared by the engines of a test process.

Nearly every test opens an engine of its own, and a new engine compiles each statement again: half of what a test of the
protocol would compute.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.util import LRUCache

_MOST = 1_500


class _Shared:
    """A cache of compiled statements that engines with equal dialects share.

    The key of a statement begins with its dialect object. Each engine has its own, so this cache drops it.
    """

    def __init__(self) -> None:
        self._found: LRUCache[tuple[Any, ...], Any] = LRUCache(_MOST)

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        assert isinstance(key[0], sa.Dialect), "SQLAlchemy names its compiled statements in another way"
        return self._found.get(key[1:], default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self._found[key[1:]] = compiled

    def __len__(self) -> int:
        return len(self._found)

    def clear(self) -> None:
        self._found.clear()


_shared: dict[tuple[Any, ...], _Shared] = {}


def share_compiled_statements() -> None:
    """Let all engines of this process share compiled statements."""
    sa.event.listen(sa.Engine, "engine_connect", _share)


def _share(connection: sa.Connection) -> None:
    engine = connection.engine
    if engine._compiled_cache is None or isinstance(engine._compiled_cache, _Shared):
        return
    one: Any = engine.dialect
    alike = (type(one), one.paramstyle, one.server_version_info, one._json_serializer, one._json_deserializer)
    engine._compiled_cache = _shared.setdefault(alike, _Shared())  # type: ignore[assignment]
