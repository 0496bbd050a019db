"""Pages of backfills."""

from __future__ import annotations

from functools import partial

from rqsched import Cron
from rqsched.features.backfill import store as backfills
from tests.support.env import HOUR, NOON, Env


def test_backfills_of_an_id_are_those_of_each_incarnation_newest_first(any_env: Env) -> None:
    look = partial(backfills.page, namespace="default", status=None, limit=2, cursor=None)
    database = any_env.scheduler.runtime.database
    for count in range(1, 4):
        schedule = any_env.create("report", spec=Cron("0 * * * *"))
        schedule.backfill(NOON - 3 * HOUR, NOON - HOUR)
        any_env.create(f"other-{count}", spec=Cron("0 * * * *")).backfill(NOON - 3 * HOUR, NOON - HOUR)
        found = database.read(partial(look, schedule_id="report"))
        assert found.items[0].schedule_uid == schedule.uid
        assert (len(found.items), found.next_cursor is not None) == (min(count, 2), count > 2)
        schedule.delete()
        any_env.advance(HOUR)
    rest = database.read(partial(look, schedule_id="report", cursor=found.next_cursor))
    assert (len(rest.items), rest.next_cursor) == (1, None)
    assert database.read(partial(look, schedule_id="nobody")).items == []
    assert len(database.read(partial(look, schedule_id=None)).items) == 2
