"""An instant at the end of the calendar is an occurrence like others, whatever is added to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rqsched.kernel.decide.delays import later
from rqsched.when.spec import Once
from tests.support.env import Env

LAST = datetime.max.replace(tzinfo=UTC)


def test_what_is_later_than_the_calendar_is_its_last_instant() -> None:
    assert later(LAST - timedelta(days=1), timedelta(days=366)) == later(LAST, timedelta(0)) == LAST
    assert later(LAST - timedelta(days=2), timedelta(days=1)) == LAST - timedelta(days=1)


@pytest.mark.parametrize("before", [timedelta(0), timedelta(seconds=5)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"jitter": "1d"}, {"spread": "1d", "jitter": "1h"}, {"exclude": "Sat, Sun", "on_excluded": "next"},
     {"exclude": "Sat", "on_excluded": "previous", "jitter": "1d"}, {"start_within": "300d"}],
    ids=str,
)  # fmt: skip
def test_the_last_instant_is_created_shown_explained_and_skipped(
    env: Env, before: timedelta, options: dict[str, Any]
) -> None:
    at = LAST - before
    handle = env.scheduler.get(env.create("last", Once(at), **options).schedule_id)
    assert handle.state.next_run_at == at
    assert handle.state.due_at is not None
    assert at <= handle.state.due_at <= LAST
    assert handle.upcoming(3) == [handle.state.due_at]
    handle.why(at=at)
    handle.trigger()
    handle.skip_next(1)
    handle.pause()
    handle.resume()
