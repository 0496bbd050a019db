"""`H` in what operations do: a schedule has its place from its namespace and id, and keeps it."""

from __future__ import annotations

import pytest

from rqsched import Cron, Declaration, Spec
from rqsched.api.scheduler import Scheduler
from rqsched.errors import InvalidCronError
from rqsched.testing import assert_has_schedule
from tests.support.env import HOUR, Env, occurrences


def minutes(scheduler: Scheduler) -> dict[str, int]:
    return {one.schedule_id: one.next_run_at.minute for one in scheduler.iter() if one.next_run_at}


def test_a_schedule_fires_at_the_place_of_its_id_and_shows_what_was_written(any_env: Env) -> None:
    handle = any_env.create("nightly", "H * * * *")
    place = Spec("H * * * *", dst_gap="shift").placed_for("default", "nightly")
    assert handle.spec == place
    assert handle.describe().timing == f"cron H * * * * ({place.primary_cron}) UTC"
    any_env.tick(2 * HOUR)
    [at] = occurrences(handle)
    assert at.minute == handle.next_run_at.minute == int((place.primary_cron or "").split()[0])  # type: ignore[union-attr]


def test_a_schedule_that_is_created_again_keeps_its_place(env: Env) -> None:
    before = env.create("nightly", "H H * * *").next_run_at
    env.scheduler.get("nightly").delete()
    assert env.create("nightly", "H H * * *").next_run_at == before
    assert env.create("nightly", "H H * * *", namespace="other").next_run_at != before


def test_a_declaration_that_says_h_again_is_no_change_and_another_option_moves_nothing(env: Env) -> None:
    declared = [Declaration(f"report-{number}", "note", Cron("H * * * *")) for number in range(40)]
    assert len(env.scheduler.sync(declared).created) == 40
    before = minutes(env.scheduler)
    assert len({*before.values()}) > 15
    assert len(env.scheduler.sync(declared).unchanged) == 40
    assert env.scheduler.upsert("report-3", "note", Cron("H * * * *"))[1] == "unchanged"
    env.scheduler.get("report-3").update(queue="high", timezone="Europe/Berlin")
    assert minutes(env.scheduler) == before
    assert env.scheduler.upsert("report-3", "note", Cron("H H * * *"))[1] == "updated"


def test_an_idempotency_key_returns_the_schedule_of_the_same_h(env: Env) -> None:
    first, again = (env.create("a", "H * * * *", idempotency_key="k") for _ in range(2))
    assert first.uid == again.uid


def test_a_place_that_never_fires_is_refused_before_anything_is_written(env: Env) -> None:
    refused = next(f"s{n}" for n in range(99) if not _fires(f"s{n}"))
    with pytest.raises(InvalidCronError, match="never fires"):
        env.create(refused, "0 0 H(29-31) 2 *")
    assert env.scheduler.count() == 0


def _fires(schedule_id: str) -> bool:
    try:
        Spec("0 0 H(29-31) 2 *").placed_for("default", schedule_id)
    except InvalidCronError:
        return False
    return True


def test_the_testing_helper_takes_what_was_written(env: Env) -> None:
    env.create("nightly", "H H * * *", timezone="Europe/Berlin")
    assert_has_schedule(env.scheduler, "nightly", spec="H H * * *")
    with pytest.raises(AssertionError, match="not 'cron H 3"):
        assert_has_schedule(env.scheduler, "nightly", spec="H 3 * * *")
