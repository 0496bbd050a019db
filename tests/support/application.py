"""An application with its own tables in its scheduler's database: it writes both in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from tests.support.env import Env

orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
"""The application's own table."""


class Application:
    """An application's own engine, with SQLAlchemy's usual settings, and its table."""

    def __init__(self, env: Env, **options: Any) -> None:
        self.env = env
        self.engine = sa.create_engine(env.runtime.database.url, **options)
        orders.drop(self.engine, checkfirst=True)
        orders.create(self.engine)

    def close(self) -> None:
        orders.drop(self.engine)
        self.engine.dispose()

    def session(self) -> orm.Session:
        return orm.Session(self.engine)

    @staticmethod
    def order(transaction: sa.Connection | orm.Session, number: int = 1) -> None:
        """Something of the application's own is written in its transaction."""
        transaction.execute(sa.insert(orders).values(id=number))

    def ordered(self) -> list[int]:
        """What was committed."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars())

    def linked(self) -> list[str]:
        """The ids of the schedules that have a link in Redis, in order."""
        armed = self.env.armed()
        return sorted(
            schedule.schedule_id
            for schedule in self.env.scheduler.iter()
            if any(schedule.uid in link for link in armed)
        )

    def names(self) -> list[str]:
        """The ids of the schedules there are, in order."""
        return sorted(schedule.schedule_id for schedule in self.env.scheduler.iter())


@contextmanager
def application(env: Env, **options: Any) -> Iterator[Application]:
    opened = Application(env, **options)
    try:
        yield opened
    finally:
        opened.close()
