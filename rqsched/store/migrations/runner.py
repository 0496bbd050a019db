"""Runs alembic inside a transaction that the caller opened and commits; `schema` decides when."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection


def alembic_config(connection: Connection) -> Config:
    """Return the configuration of alembic; none of it is in a file."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(connection: Connection, revision: str) -> None:
    """Run every migration up to `revision` that has not run yet."""
    command.upgrade(alembic_config(connection), revision)


def stamp(connection: Connection, revision: str) -> None:
    """Record that the schema is at `revision` without running anything."""
    command.stamp(alembic_config(connection), revision)
