"""Shell completion of arguments: schedule ids and workflow names, as SQL has them now.

Without a database, or with one that does not answer soon, nothing is offered: a completion prints no error, starts no
server and creates no file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import typer

from rqsched.config import Settings
from rqsched.embedded import database_url
from rqsched.errors import RqschedError
from rqsched.store import listing, registered_workflows
from rqsched.store.database import Connection, Database, DatabaseError, Patience, sqlite_path, with_connect_timeout

_MOST = 100
"""How many ids are offered at most."""
_SECONDS = 2
"""How long a connection may take: the user waits for the completion."""


def schedule_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the ids of the namespace that begin with the text, at most 100."""
    named = context.params.get("namespace")
    return _offer(lambda connection, settings: listing.ids(connection, named or settings.namespace, incomplete, _MOST))


def workflow_names(incomplete: str) -> list[str]:
    """Offer the workflows, registered by any process, whose names begin with the text."""
    names = _offer(lambda connection, _: sorted(registered_workflows.read_all(connection)))
    return [name for name in names if name.startswith(incomplete)]


def _offer(read: Callable[[Connection, Settings], list[str]]) -> list[str]:
    try:
        settings = Settings()
        url = _known_url(settings)
        if url is None:
            return []
        with closing(Database(url, patience=Patience(total=timedelta(0)), pooler=settings.database_pooler)) as database:
            return database.read(lambda connection: read(connection, settings))
    except (RqschedError, DatabaseError, OSError):
        return []


def _known_url(settings: Settings) -> str | None:
    """Return the database's URL; None for a file that does not exist, for opening it would create it."""
    if settings.database_url is None and not settings.data_dir.exists():
        return None
    url = database_url(settings)
    path = sqlite_path(url)
    if path is not None and not path.is_file():
        return None
    return with_connect_timeout(url, _SECONDS)
