"""The statements of docs/comparison.md on clock changes, computed with each package."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from celery import Celery
from celery.schedules import crontab
from django_celery_beat.tzcrontab import TzAwareCrontab
from freezegun import freeze_time
from rq.cron import CronJob
from rq_scheduler.utils import get_next_scheduled_time  # type: ignore[import-untyped]

from rqsched.when.spec import Spec
from tests.support.narrow import present
from tests.support.processes import REPOSITORY

BERLIN = ZoneInfo("Europe/Berlin")
NEXT = Callable[[str, datetime], datetime]
"""The next occurrence of an expression after the last one."""
SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def host_in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def by_rqsched(expression: str, last: datetime, gap: str = "shift", fold: str = "first") -> datetime:
    return present(Spec(expression, "Europe/Berlin", dst_gap=gap, dst_fold=fold).next_after(last))


def by_rq_scheduler(expression: str, last: datetime) -> datetime:
    ahead = last.astimezone(BERLIN).utcoffset() or timedelta(0)
    with freeze_time(last.replace(tzinfo=None) + timedelta(seconds=1), tz_offset=ahead):
        return datetime.fromtimestamp(get_next_scheduled_time(expression).timestamp(), UTC)


def by_rq_cron(expression: str, last: datetime) -> datetime:
    job = CronJob("default", func=print, cron=expression)
    job.latest_enqueue_time = last
    return job.get_next_enqueue_time()


def by_apscheduler(expression: str, last: datetime) -> datetime:
    trigger = CronTrigger.from_crontab(expression, timezone=BERLIN)
    found: datetime = trigger.get_next_fire_time(last.astimezone(BERLIN), last + timedelta(seconds=1))
    return found.astimezone(UTC)


def _asked_every_minute(schedule: crontab, now: list[datetime], last: datetime, zone: ZoneInfo) -> datetime:
    """Look as beat does, once a minute."""
    now[0] = last + timedelta(minutes=1)
    while not schedule.is_due(last.astimezone(zone)).is_due:
        now[0] += timedelta(minutes=1)
    return now[0]


def by_celery_beat(expression: str, last: datetime) -> datetime:
    minute, hour, *_ = expression.split()
    app = Celery(broker="memory://")
    app.conf.update(timezone="Europe/Berlin", enable_utc=True)
    now = [last]
    schedule = crontab(minute=minute, hour=hour, app=app, nowfun=lambda: now[0].astimezone(BERLIN))
    return _asked_every_minute(schedule, now, last, BERLIN)


def by_django_celery_beat(expression: str, last: datetime) -> datetime:
    now = [last]

    class Schedule(TzAwareCrontab):  # type: ignore[misc]
        tz: ZoneInfo

        def nowfunc(self) -> datetime:
            return now[0].astimezone(self.tz)

    minute, hour, *_ = expression.split()
    schedule = Schedule(minute=minute, hour=hour, tz=BERLIN, app=Celery(broker="memory://"))
    return _asked_every_minute(schedule, now, last, ZoneInfo("UTC"))


BY: dict[str, NEXT] = {
    "rqsched": by_rqsched,
    "rq-scheduler": by_rq_scheduler,
    "RQ's cron": by_rq_cron,
    "Celery beat": by_celery_beat,
    "django-celery-beat": by_django_celery_beat,
    "APScheduler": by_apscheduler,
}
PAGE = (REPOSITORY / "docs" / "comparison.md").read_text()


def table() -> dict[str, list[str]]:
    (text,) = re.findall(r"<!-- clocks: begin -->\n(.*?)<!-- clocks: end -->", PAGE, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


def local_times(following: NEXT, expression: str, since: datetime, count: int) -> list[str]:
    """The local times of the day after `since`."""
    day, found = (since + timedelta(days=1)).date(), []
    for _ in range(count):
        since = following(expression, since)
        found.append(since.astimezone(BERLIN))
    return [f"{at:%H:%M}" for at in found if at.date() == day]


IN_SPRING = {
    (): "not that day",
    ("03:30",): "at 03:30",
    ("01:30", "01:30"): "at 03:30; on Python 3.11 at 01:30, in every pass until 03:00",
}
IN_AUTUMN = {("02:30",): "once", ("02:30", "02:30"): "twice"}
EACH_HOUR = {25: "each hour", 24: "not in the repeated hour"}


def test_page_has_a_row_for_each_package() -> None:
    assert table().keys() == BY.keys()


@pytest.mark.parametrize("name", BY)
def test_page_says_what_each_package_does_when_clocks_change(name: str) -> None:
    following, (spring, autumn, hourly, _) = BY[name], table()[name]

    in_spring = tuple(local_times(following, "30 2 * * *", SPRING, 2))
    if name == "rqsched" or (name == "rq-scheduler" and sys.version_info >= (3, 12)):
        assert spring.startswith(IN_SPRING[in_spring])
    else:
        assert spring == IN_SPRING[in_spring]
    assert autumn.partition(";")[0] == IN_AUTUMN[tuple(local_times(following, "30 2 * * *", AUTUMN, 2))]
    assert hourly == EACH_HOUR[len(local_times(following, "30 * * * *", AUTUMN, 36))]


def test_page_says_what_other_options_do() -> None:
    spring, autumn, *_ = table()["rqsched"]
    skip, both = partial(by_rqsched, gap="skip"), partial(by_rqsched, fold="both")
    skipped, twice = local_times(skip, "30 2 * * *", SPRING, 2), local_times(both, "30 2 * * *", AUTUMN, 2)
    assert spring.endswith(f'with `dst_gap="skip"` {IN_SPRING[tuple(skipped)]}')
    assert autumn.endswith(f'with `dst_fold="both"` {IN_AUTUMN[tuple(twice)]}')


@pytest.mark.parametrize("name", [name for name in BY if name != "rqsched"])
def test_what_an_import_writes_fires_at_the_instants_of_the_package(name: str) -> None:
    options = dict(re.findall(r'`dst_(gap|fold)="(\w+)"`', table()[name][3]))
    ours = partial(by_rqsched, **options)
    for since in (SPRING, AUTUMN):
        theirs = tuple(local_times(BY[name], "30 2 * * *", since, 2))
        if theirs != ("01:30", "01:30"):  # no schedule fires as rq-scheduler does on Python 3.11
            assert tuple(local_times(ours, "30 2 * * *", since, 2)) == theirs
