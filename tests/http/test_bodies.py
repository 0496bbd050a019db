"""Bodies that no honest caller sends: each is refused with 4xx and writes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.population import MALFORMED
from tests.support.rows import every_row
from tests.support.web import MINUTELY, SCHEDULES, Web, at, problem


def is_empty(web: Web) -> bool:
    return bool(
        web.get(SCHEDULES, params={"total": "1", "status": "active,paused,done,dead,deleted"}).json()["total"] == 0
    )


def test_a_malformed_body_is_refused_and_writes_nothing(web: Web) -> None:
    with every_row() as row:
        for name, content in MALFORMED:
            with row(name):
                problem(web.post(SCHEDULES, content=content), 400, "malformed")
                assert is_empty(web)


def test_a_body_that_is_not_an_object_is_refused(web: Web) -> None:
    with every_row() as row:
        for content in (b"", b"null", b"[]", b'"x"', b"3", b"true"):
            with row(content):
                assert web.post(SCHEDULES, content=content).status_code == 422


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_body_of_another_type_is_refused(web: Web, kind: str) -> None:
    content = json.dumps({"schedule_id": "x", **MINUTELY})
    assert web.post(SCHEDULES, content=content, headers={"content-type": kind}).status_code == 422
    assert is_empty(web)


FIELDS = ["schedule_id", "name", "workflow", "workflow_id", "spec", "cron", "interval", "interval_seconds", "offset",
          "once", "timezone", "start_at", "end_at", "args", "kwargs", "overlap", "buffer_limit", "missed",
          "fire_within", "start_within", "limit", "limit_running", "limit_rate",
          "missed_limit", "on_resume", "jitter", "max_runs", "on_max_runs",
          "max_successes", "total_repeats",
          "retention", "fan_out", "overlap_until", "targets", "target_timeout", "max_parallel", "environments", "retry",
          "max_retries", "timeout",
          "queue", "connection", "priority",
          "labels", "memo", "search_attributes", "description", "owner", "note", "paused", "executor",
          "from_completion"]  # fmt: skip
SPEC_FIELDS = ["cron_expressions", "crons", "intervals", "instants", "timezone", "start_at", "end_at"]
RETRY_FIELDS = [
    "max_retries",
    "base",
    "factor",
    "cap",
    "jitter",
    "then",
    "max_consecutive_failures",
    "retry_on",
    "give_up_on",
]
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | st.sampled_from(["* * * * *", "PT1S", "1h", "UTC", "2026-02-01T00:00:00Z", "x" * 300, ""])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SPECS = st.fixed_dictionaries({}, optional=dict.fromkeys(SPEC_FIELDS, VALUES))
RETRIES = st.fixed_dictionaries({}, optional=dict.fromkeys(RETRY_FIELDS, VALUES))
BODIES = st.fixed_dictionaries(
    {},
    optional={name: VALUES for name in FIELDS if name not in {"spec", "retry"}}
    | {"spec": SPECS, "retry": RETRIES, "target_retry": RETRIES},
)
REASONS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.broad
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=REASONS)
@given(wrong=BODIES, is_whole=st.booleans())
def test_a_fuzzed_body_never_breaks_the_server(web: Web, wrong: dict[str, Any], is_whole: bool) -> None:
    body = {"schedule_id": "fuzz", **MINUTELY, **wrong} if is_whole else wrong
    answer = web.post(SCHEDULES, body)
    if answer.status_code == 201:
        assert web("DELETE", at(answer.json()["id"]), params={"purge": "1"}).status_code == 204
        return
    assert 400 <= answer.status_code < 500, (body, answer.text)
    assert is_empty(web)


@pytest.mark.broad
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=REASONS)
@given(wrong=BODIES)
def test_a_fuzzed_change_never_breaks_the_server(web: Web, wrong: dict[str, Any]) -> None:
    web("PUT", at(), MINUTELY)
    before = web.read()
    answer = web("PATCH", at(), wrong)
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, (wrong, answer.text)
        assert web.read() == before
