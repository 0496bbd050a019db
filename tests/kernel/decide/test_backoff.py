"""Backoff to the second: growth, caps, jitter, spread, and the interval it starts from."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rqsched.kernel.decide.delays import backoff, base_of
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.when.spec import Cron, Every, Once, Spec
from tests.support.env import HOUR, MINUTE, NOON, SECOND


def delays(policy: RetryPolicy, interval: timedelta, count: int = 7) -> list[float]:
    return [backoff(policy, attempt, interval=interval).total_seconds() for attempt in range(1, count + 1)]


@pytest.mark.parametrize(
    ("policy", "interval", "seconds"),
    [
        pytest.param(RetryPolicy(), 60 * SECOND, [60, 120, 240, 480, 600, 600, 600], id="Pipelit, 60 s"),
        pytest.param(RetryPolicy(), 300 * SECOND, [300, 600, 1200, 2400, 3000, 3000, 3000], id="Pipelit, 300 s"),
        pytest.param(RetryPolicy(), 10 * SECOND, [10, 20, 40, 80, 100, 100, 100], id="a short interval"),
        pytest.param(RetryPolicy(), 24 * HOUR, [300, 600, 1200, 2400, 3000, 3000, 3000], id="a daily job"),
        pytest.param(RetryPolicy(base=5 * SECOND), HOUR, [5, 10, 20, 40, 50, 50, 50], id="a base of its own"),
        pytest.param(RetryPolicy(factor=1), MINUTE, [60] * 7, id="no growth"),
        pytest.param(RetryPolicy(factor=3), MINUTE, [60, 180, 540, 600, 600, 600, 600], id="another factor"),
        pytest.param(RetryPolicy(factor=1.5), MINUTE, [60, 90, 135, 202.5, 303.75, 455.625, 600], id="a fraction"),
        pytest.param(RetryPolicy(cap=90 * SECOND), MINUTE, [60, 90, 90, 90, 90, 90, 90], id="a cap of its own"),
        pytest.param(RetryPolicy(cap=SECOND), MINUTE, [1] * 7, id="a cap below the interval"),
        pytest.param(
            RetryPolicy(base=SECOND, cap=HOUR), MINUTE, [1, 2, 4, 8, 16, 32, 64], id="a cap far from the base"
        ),
    ],
)
def test_the_backoff_doubles_from_its_base_to_its_cap(
    policy: RetryPolicy, interval: timedelta, seconds: list[float]
) -> None:
    assert delays(policy, interval) == seconds


def test_a_thousandth_retry_still_waits_the_cap() -> None:
    assert backoff(RetryPolicy(), 100_000, interval=MINUTE) == 10 * MINUTE


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        (Spec("0 2 * * *"), MINUTE),
        (Spec(Once(NOON)), MINUTE),
        (Spec(Every("5m")), 5 * MINUTE),
        (Spec(Cron("@every 45s")), 45 * SECOND),
        (Spec(Every("24h", offset="0s")), 5 * MINUTE),
        (Spec(Every("5m", from_completion=True)), 5 * MINUTE),
        (Spec([Every("30m"), Every("2m")]), 2 * MINUTE),
        (Spec(["0 2 * * *", Every("30m")]), MINUTE),
    ],
    ids=lambda value: value.describe() if isinstance(value, Spec) else "",
)
def test_the_base_is_the_smallest_interval_up_to_five_minutes_and_a_minute_for_crons(
    spec: Spec, base: timedelta
) -> None:
    assert backoff(RetryPolicy(), 1, interval=base_of(spec)) == base


def test_jitter_adds_a_repeatable_share_to_a_delay() -> None:
    policy = RetryPolicy(factor=1, jitter=30 * SECOND)
    found = [backoff(policy, attempt, interval=MINUTE, salt="run") - MINUTE for attempt in range(1, 200)]
    assert found == [backoff(policy, attempt, interval=MINUTE, salt="run") - MINUTE for attempt in range(1, 200)]
    assert timedelta(0) <= min(found) < 2 * SECOND
    assert 28 * SECOND < max(found) < 30 * SECOND
    assert backoff(policy, 1, interval=MINUTE, salt="run") != backoff(policy, 1, interval=MINUTE, salt="another")


def test_a_retry_is_spread_around_its_delay_and_never_beyond_the_cap() -> None:
    retry = RetryPolicy(base=HOUR, cap=1.2 * HOUR)
    waits = [backoff(retry, 1, interval=MINUTE, salt=str(number), spread=0.5) for number in range(50)]
    assert all(0.5 * HOUR <= wait <= 1.2 * HOUR for wait in waits)
    assert len(set(waits)) > 20
    assert backoff(retry, 1, interval=MINUTE, salt="0", spread=0.5) == waits[0], "the same for every process"
    assert backoff(retry, 1, interval=MINUTE, salt="0") == HOUR
