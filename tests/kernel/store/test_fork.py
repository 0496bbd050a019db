"""A connection is never shared across a fork: RQ forks a horse for every job."""

from __future__ import annotations

import gc

import sqlalchemy as sa

from rqsched.kernel.store import changes
from rqsched.kernel.store.database import Database
from tests.kernel.store.samples import add_schedule, count, created, write
from tests.support.children import FORK, in_children
from tests.support.narrow import present
from tests.support.sql import backend


def schedule_count(database: Database) -> int:
    return database.read(lambda connection: count(connection, "rqsched_schedules"))


def connection_of(database: Database) -> int:
    """Return the server process of the connection. SQLite reopens its connections after a fork, and gives 0."""
    if database.dialect.name == "sqlite":
        return 0
    return database.read(backend)


def test_a_forked_child_and_its_parent_both_read_and_write(database: Database) -> None:
    add_schedule(database, "parent")

    def work_in_child() -> int:
        write(database, created("child"))
        return schedule_count(database)

    assert in_children(1, work_in_child) == [2]
    write(database, created("parent-again"))
    assert schedule_count(database) == 3


def test_each_forked_child_has_connections_of_its_own(postgres_url: str) -> None:
    database = Database(postgres_url)

    def served_by() -> int:
        return database.read(backend)

    before = served_by()
    backends = in_children(3, served_by)
    assert len({before, *backends}) == 4
    assert served_by() == before
    database.close()


def test_a_child_that_closes_and_forgets_everything_leaves_the_parents_connection_alone(database: Database) -> None:
    write(database, created())
    before = connection_of(database)

    def leave() -> None:
        database.close()
        schedule_count(database)
        gc.collect()
        database.close()

    in_children(2, leave)
    assert connection_of(database) == before
    write(database, created("another"))
    assert schedule_count(database) == 2


def test_children_forked_after_use_write_side_by_side(database: Database) -> None:
    schedule = add_schedule(database)

    def add_ten() -> None:
        for _ in range(10):
            database.transact(add_one)

    def add_one(connection: sa.Connection) -> None:
        locked = present(changes.lock_one(connection, schedule.uid))
        statement = sa.text("UPDATE rqsched_schedules SET run_count = :value WHERE uid = :uid")
        connection.execute(statement, {"value": locked.run_count + 1, "uid": schedule.uid})

    in_children(4, add_ten)
    found = present(database.read(lambda connection: changes.find(connection, schedule.uid)))
    assert found.run_count == 40


def test_a_childs_commit_survives_the_last_connection_of_its_parent(sqlite_url: str) -> None:
    """A child with an inherited open file would hold no lock, and would lose its commits with the write-ahead log."""
    database = Database(sqlite_url)
    write(database, created("parent"))
    child_wrote, parent_closed = FORK.Event(), FORK.Event()

    def write_before_and_after() -> None:
        write(database, created("before"))
        child_wrote.set()
        assert parent_closed.wait(timeout=30)
        write(database, created("after"))

    child = FORK.Process(target=write_before_and_after)
    child.start()
    assert child_wrote.wait(timeout=30)
    database.close()
    parent_closed.set()
    child.join()
    write(database, created("parent-again"))
    assert schedule_count(database) == 4
    database.close()


def test_a_connection_in_use_survives_a_fork(database: Database) -> None:
    def work(connection: sa.Connection) -> int:
        changes.write(connection, [created()])
        in_children(1, lambda: None)
        return count(connection, "rqsched_schedules")

    assert database.transact(work) == 1
    assert schedule_count(database) == 1
