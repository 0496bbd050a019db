"""An excluded day in whose night the clocks go forward: one filter tells what becomes of the occurrence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rqsched.kernel.decide import audit
from rqsched.when.spec import Spec
from tests.support.env import Env

NAMED = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)


def start_in_march(env: Env, on_excluded: str) -> str:
    env.clock.set(datetime(2026, 3, 1, tzinfo=UTC))
    spec = Spec("30 2 29,31 3 *", "Europe/Berlin", exclude="2026-03-29", on_excluded=on_excluded, dst_gap="skip")
    return env.create("night", spec).schedule_id


def test_it_moves_to_the_next_day_and_why_says_from_where(env: Env) -> None:
    handle = env.scheduler.get(start_in_march(env, "next"))
    assert handle.state.next_run_at == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    assert "moved" in handle.why(at=NAMED).text


def test_without_another_day_one_event_records_it_as_excluded(env: Env) -> None:
    handle = env.scheduler.get(start_in_march(env, "skip"))
    env.advance(timedelta(days=31))
    env.deliver(handle)
    told = [one for one in handle.history() if one.event_type in {audit.EXCLUDED, audit.SKIPPED}]
    assert [(one.event_type, one.payload["count"], one.payload["first"]) for one in told] == [
        (audit.EXCLUDED, 1, "2026-03-29T01:30:00Z")
    ]
    assert handle.why(at=NAMED).answer == "excluded"
