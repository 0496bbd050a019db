"""What a shell offers behind a command: schedule ids and workflow names, as SQL has them now.

Without a database, or with one that does not answer soon, nothing is offered: a completion never says anything else,
starts no server and creates no file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
import typer
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.errors import RqschedError
from rqsched.store import listing
from rqsched.store import metadata as facts
from rqsched.store.database import Database, Patience

_MOST = 100
_SECONDS = 2


def schedule_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the namespace that begin so, at most 100."""
    named = context.params.get("namespace")
    return _offer(lambda connection, settings: listing.ids(connection, named or settings.namespace, incomplete, _MOST))


def workflow_names(incomplete: str) -> list[str]:
    """Offer the workflows any process registered whose names begin so."""
    names = _offer(lambda connection, _: sorted(facts.all_workflows(connection)))
    return [name for name in names if name.startswith(incomplete)]


def _offer(read: Callable[[Connection, Settings], list[str]]) -> list[str]:
    try:
        settings = Settings()
        url = _known_url(settings)
        if url is None:
            return []
        with closing(Database(url, patience=Patience(total=timedelta(0)))) as database:
            return database.read(lambda connection: read(connection, settings))
    except (RqschedError, SQLAlchemyError, OSError):
        return []


def _known_url(settings: Settings) -> str | None:
    """Say where SQL is; None when it would be a file that is not there, for opening one creates it."""
    if settings.database_url is None and not settings.data_dir.exists():
        return None
    url = sa.make_url(database_url(settings))
    if not settings.is_sqlite:
        url = url.update_query_dict({"connect_timeout": str(_SECONDS)})
    elif not Path(url.database or "").is_file():
        return None
    return url.render_as_string(hide_password=False)
