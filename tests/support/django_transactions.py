"""A Django process that uses schedules in its own transactions, and prints its observations as JSON.

`python -m tests.support.django_transactions DJANGO_DATABASE REDIS_URL RQSCHED_DATABASE_URL`; the first one is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import django
import sqlalchemy as sa
from django.conf import settings
from django.db import connection, transaction

from rqsched import Every, Scheduler, workflow
from rqsched.errors import RqschedError
from tests.support.narrow import present


@workflow("note")
def note() -> None: ...


class Project:
    """A project with one table, and its scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def create(self, name: str, **options: Any) -> Any:
        from rqsched.contrib.django_transaction import in_atomic  # noqa: PLC0415 - it needs Django's settings

        return self.scheduler.create(name, "note", Every("1m"), session=in_atomic(), **options)

    def order(self, number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [number])

    def saw(self) -> dict[str, Any]:
        """Return the committed rows and the contents of Redis."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT id FROM orders ORDER BY id")
            ordered = [row[0] for row in cursor.fetchall()]
        found = list(self.scheduler.iter())
        transport = self.scheduler.runtime.transport
        armed: Any = transport.redis.zrange(transport.scheduled_key, 0, -1)
        linked = [one.schedule_id for one in found if any(one.uid in link.decode() for link in armed)]
        queued: Any = transport.redis.llen("rq:queue:default")
        return {"ordered": ordered, "names": [one.schedule_id for one in found], "linked": linked, "queued": queued}


def commits(project: Project) -> dict[str, Any]:
    with transaction.atomic():
        project.order(1)
        created = project.create("report")
        created.trigger(session=_in_atomic())
        inside = {"aware": created.next_run_at.tzinfo is not None, **project.saw()}
    return {"inside": inside, **project.saw()}


def publishes_together(project: Project) -> dict[str, Any]:
    """Five schedules of one block, one of them in an inner one: how many statements they take in it, and after it."""
    from rqsched.contrib import django_transaction  # noqa: PLC0415 - it needs Django's settings

    counts = {"inside": 0, "after": 0}

    def count(place: str) -> Callable[..., None]:
        return lambda *_: counts.update({place: counts[place] + 1})

    sa.event.listen(django_transaction._engine("default"), "before_cursor_execute", count("inside"))
    sa.event.listen(project.scheduler.runtime.database.engine, "before_cursor_execute", count("after"))
    with transaction.atomic():
        for number in range(4):
            project.create(f"report-{number}")
        with transaction.atomic():
            project.create("report-4")
        counts["after"] = 0  # our own connections have been opened by now
    return {**counts, **project.saw()}


def fails(project: Project) -> dict[str, Any]:
    try:
        with transaction.atomic():
            project.order(1)
            project.create("report")
            raise ZeroDivisionError
    except ZeroDivisionError:
        return project.saw()


def undoes_a_savepoint(project: Project) -> dict[str, Any]:
    with transaction.atomic():
        project.create("kept")
        try:
            with transaction.atomic():
                project.order(1)
                project.create("undone")
                raise ZeroDivisionError
        except ZeroDivisionError:
            project.order(2)
    return project.saw()


def goes_on_after_a_refusal(project: Project) -> dict[str, Any]:
    project.scheduler.create("report", "note", Every("1m"))
    with transaction.atomic():
        project.order(1)
        try:
            project.create("report")
        except RqschedError as error:
            refused = error.code
    return {"refused": refused, **project.saw()}


def is_outside(project: Project) -> dict[str, Any]:
    try:
        project.create("report")
    except RqschedError as error:
        return {"refused": str(error), **project.saw()}
    return project.saw()


def reconnects(project: Project) -> dict[str, Any]:
    for name in ("one", "two"):
        with transaction.atomic():
            project.create(name)
        connection.close()
    return project.saw()


def keeps_its_settings(project: Project) -> dict[str, Any]:
    names = ("lock_timeout", "statement_timeout", "timezone", "transaction_isolation")

    def shown() -> list[str]:
        with connection.cursor() as cursor:
            found = []
            for name in names:
                cursor.execute(f"SHOW {name}")
                found.append(present(cursor.fetchone())[0])
            return found

    before = shown()
    with transaction.atomic():
        project.create("report")
        inside = shown()
    return {"same": before == inside == shown(), "autocommit": connection.get_autocommit()}


def waits_for_on_commit(project: Project) -> dict[str, Any]:
    with transaction.atomic():
        project.order(1)
        transaction.on_commit(lambda: project.scheduler.create("report", "note", Every("1m")))
        inside = project.saw()
    return {"inside": inside, **project.saw()}


def _in_atomic() -> Any:
    from rqsched.contrib.django_transaction import in_atomic  # noqa: PLC0415 - it needs Django's settings

    return in_atomic()


STORIES: dict[str, Callable[[Project], dict[str, Any]]] = {
    story.__name__: story
    for story in (
        commits,
        publishes_together,
        fails,
        undoes_a_savepoint,
        goes_on_after_a_refusal,
        is_outside,
        reconnects,
        keeps_its_settings,
        waits_for_on_commit,
    )
}


def main() -> None:
    database, redis_url, database_url = sys.argv[1:4]
    settings.configure(DATABASES={"default": json.loads(database)}, USE_TZ=True, TIME_ZONE="Europe/Berlin")
    django.setup()
    found = {}
    stories = STORIES
    if connection.vendor == "sqlite":
        stories = {name: STORIES[name] for name in ("is_outside", "waits_for_on_commit")}
    for name, tell in stories.items():
        with Scheduler(database_url=database_url, redis_url=redis_url) as scheduler, connection.cursor() as cursor:
            scheduler.runtime.transport.redis.flushdb()
            cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            found[name] = tell(Project(scheduler))
            for schedule in list(scheduler.iter()):
                schedule.delete(purge=True)
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE orders")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
