"""Policies: their names, the combinations that contradict each other, and their text."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from rq.timeouts import JobTimeoutException

from rqsched.errors import InvalidPolicyError
from rqsched.kernel.chain.error_text import types_of
from rqsched.kernel.decide.policy import (
    LOST,
    NO_TYPES,
    TIMEOUT,
    ErrorTypes,
    FailurePolicy,
    MissedPolicy,
    OnResume,
    OverlapPolicy,
    Policies,
    RetryPolicy,
    rule_against,
)
from tests.support.env import HOUR, MINUTE, SECOND


def named(**values: Any) -> Policies:
    """Policies by names, as options have them."""
    return Policies(**values)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((policy.value, policy) for policy in OverlapPolicy),
        ("allow", OverlapPolicy.ALLOW_ALL),
        ("cancel_previous", OverlapPolicy.CANCEL_OTHER),
        ("enqueue", OverlapPolicy.BUFFER_ALL),
        (" Skip ", OverlapPolicy.SKIP),
        ("ALLOW", OverlapPolicy.ALLOW_ALL),
        (OverlapPolicy.BUFFER_ONE, OverlapPolicy.BUFFER_ONE),
    ],
    ids=str,
)
def test_an_overlap_policy_has_the_names_of_every_document(name: str, policy: OverlapPolicy) -> None:
    assert OverlapPolicy.of(name) is policy
    assert named(overlap=name).overlap is policy


@pytest.mark.parametrize("name", ["allow_duplicate", "", "none", "buffer", None, 1])
def test_an_unknown_overlap_policy_is_refused_with_the_known_names(name: Any) -> None:
    with pytest.raises(InvalidPolicyError, match=r"skip, buffer_one.*enqueue"):
        OverlapPolicy.of(name)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        pytest.param({"overlap": "allow_all", "buffer_limit": 3}, "buffer_limit", id="a cap without a queue"),
        pytest.param({"overlap": "buffer_one", "buffer_limit": 3}, "buffer_limit", id="a cap on a queue of one"),
        pytest.param({"missed": "all"}, "missed", id="all under skip"),
        pytest.param({"missed": "all", "overlap": "buffer_one"}, "missed", id="all under buffer_one"),
        pytest.param({"missed": "all", "overlap": "cancel_other"}, "missed", id="all under cancel_other"),
        pytest.param({"missed": "all", "overlap": "terminate_other"}, "missed", id="all under terminate_other"),
        pytest.param({"missed_limit": 5}, "missed_limit", id="a bound without all"),
        pytest.param({"missed": "skip", "missed_limit": 5}, "missed_limit", id="a bound under skip"),
    ],
)
def test_a_contradiction_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPolicyError) as refused:
        Policies(**options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "options",
    [
        {"overlap": "buffer_all", "buffer_limit": 1},
        {"overlap": "enqueue", "missed": "all", "missed_limit": 1000},
        {"overlap": "allow", "missed": "all", "missed_limit": 1, "fire_within": HOUR},
        {"missed": "skip", "fire_within": SECOND},
        {"fire_within": HOUR, "on_resume": "once"},
    ],
    ids=str,
)
def test_a_valid_combination_of_policies_survives_its_text(options: dict[str, Any]) -> None:
    assert Policies(**options) == Policies.loads(Policies(**options).dumps())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("overlap", "sometimes"),
        ("missed", "never"),
        ("on_resume", "later"),
        ("on_max_runs", "dead"),
        ("buffer_limit", 0),
        ("buffer_limit", True),
        ("max_successes", 0),
        ("max_successes", 1.5),
        ("fire_within", timedelta(0)),
        ("fire_within", "soon"),
        ("missed_limit", 0),
        ("missed_limit", 1001),
    ],
    ids=str,
)
def test_a_value_out_of_bounds_is_refused(option: str, value: Any) -> None:
    base = {"overlap": "buffer_all", "missed": "all"} if option in {"buffer_limit", "missed_limit"} else {}
    with pytest.raises(InvalidPolicyError):
        Policies(**base | {option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_retries", -1),
        ("max_retries", True),
        ("max_retries", 1.0),
        ("factor", 0.99),
        ("factor", float("nan")),
        ("factor", float("inf")),
        ("factor", "2"),
        ("base", timedelta(0)),
        ("base", "soon"),
        ("base", timedelta.max),
        ("cap", -SECOND),
        ("cap", True),
        ("cap", timedelta(days=366, microseconds=1)),
        ("jitter", -SECOND),
        ("jitter", float("nan")),
        ("jitter", timedelta.max),
        ("then", "retry"),
        ("max_consecutive_failures", 0),
        ("retry_on", 3),
        ("retry_on", [""]),
        ("retry_on", ["two words"]),
        ("retry_on", [int]),
        ("retry_on", [OSError("one that was raised")]),
        ("give_up_on", ["x" * 256]),
        ("give_up_on", [f"Error{number}" for number in range(101)]),
    ],
    ids=str,
)
def test_a_retry_policy_out_of_bounds_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidPolicyError) as refused:
        RetryPolicy(**{option: value})
    assert refused.value.field == f"retry.{option}"


def test_a_cap_below_the_base_is_refused() -> None:
    assert RetryPolicy(base=MINUTE, cap=MINUTE).cap == MINUTE
    with pytest.raises(InvalidPolicyError, match="below base"):
        RetryPolicy(base=MINUTE, cap=59 * SECOND)


@pytest.mark.parametrize(
    ("policy", "kills"),
    [
        (RetryPolicy(then="dead"), [True, True, True]),
        (RetryPolicy(then="continue"), [False, False, False]),
        (RetryPolicy(), [False, False, False]),
        (RetryPolicy(then="dead", max_consecutive_failures=2), [False, True, True]),
        (RetryPolicy(then="continue", max_consecutive_failures=3), [False, False, True]),
    ],
    ids=["dead", "continue", "by default", "dead after two", "continue until three"],
)
def test_failed_runs_in_a_row_kill_the_schedule_where_asked(policy: RetryPolicy, kills: list[bool]) -> None:
    assert [policy.kills_after(failures) for failures in (1, 2, 3)] == kills


def test_every_parameter_survives_its_text() -> None:
    policies = Policies(
        overlap=OverlapPolicy.BUFFER_ALL,
        buffer_limit=7,
        missed=MissedPolicy.ALL,
        fire_within=timedelta(hours=1, microseconds=1),
        missed_limit=9,
        on_resume=OnResume.FROM_NOW,
        on_max_runs="delete",
        max_successes=4,
        environments=("production", "staging"),
        retry=RetryPolicy(5, 2 * SECOND, 1.5, MINUTE, SECOND, FailurePolicy.CONTINUE, 6),
    )
    assert Policies.loads(policies.dumps()) == policies
    assert policies != Policies()


def test_equal_policies_have_equal_texts_and_one_object() -> None:
    assert named(overlap="allow").dumps() == named(overlap="ALLOW_ALL").dumps()
    assert Policies.loads(Policies().dumps()) is Policies.loads(Policies().dumps())


def test_the_defaults_are_those_of_the_documents() -> None:
    assert Policies() == named(
        overlap="skip", missed="fire_once", on_resume="next", on_max_runs="done", retry=RetryPolicy(3)
    )
    assert not RetryPolicy().kills_after(1_000)
    assert Policies().allowed_lateness is None
    assert named(missed="skip").allowed_lateness == MINUTE
    assert named(missed="skip", fire_within=HOUR).allowed_lateness == HOUR


def test_one_environment_may_be_given_by_its_name() -> None:
    assert named(environments="production").environments == ("production",)
    assert named(environments=["a", "b"]).environments == ("a", "b")


def test_stored_policies_hold_only_what_differs_from_the_defaults() -> None:
    assert Policies().dumps() == "{}"
    assert Policies(overlap=OverlapPolicy.ALLOW_ALL, retry=RetryPolicy(max_retries=1)).dumps() == (
        '{"overlap":"allow_all","retry":{"max_retries":1}}'
    )


STORED = (
    '{"buffer_limit":7,"dead_letter":true,"environments":["production"],'
    '"fan_out":"never","final_errors":["a.b"],"fire_within":3600.0,"limit":"a","limit_rate":"9/2d","limit_running":3,"max_parallel":8,"max_successes":4,"missed":"all","missed_limit":9,'
    '"on_delete":"keep_runs","on_max_runs":"delete","on_resume":"from_now","overlap":"buffer_all","overlap_until":"dispatched",'
    '"retention":"30d 500","retry":{"base":2.0,"cap":60.0,"factor":1.5,'
    '"give_up_on":["KeyError"],"jitter":1.0,"max_consecutive_failures":6,"max_retries":5,"retry_on":["OSError"],"then":"dead"},"retry_spread":0.5,"spread":7200.0,'
    '"start_within":1800.0,"target_retry":{"max_retries":2},"target_timeout":20,"targets":"note"}'
)
"""Every policy as rows hold it."""


def test_text_of_a_row_has_the_names_of_the_options() -> None:
    policies = Policies.loads(STORED)
    assert policies.on_resume is OnResume.FROM_NOW
    assert policies.dumps() == STORED
    same = {one.name for one in fields(Policies) if getattr(policies, one.name) == getattr(Policies(), one.name)}
    assert same == set(), "the text names every policy"


def test_stored_policies_with_keys_of_a_newer_release_are_read_without_them() -> None:
    text = '{"colour":"red","overlap":"allow_all","retry":{"max_retries":1,"mood":"patient"}}'
    assert Policies.loads(text) == Policies(overlap=OverlapPolicy.ALLOW_ALL, retry=RetryPolicy(max_retries=1))


@pytest.mark.parametrize(
    ("kind", "is_final"),
    [("a.b", True), ("auth.expired", True), ("auth", False), ("a.b.c", False), ("x.auth.y", False)],
)
def test_an_error_is_final_by_its_whole_name_or_by_a_prefix_that_ends_in_a_star(kind: str, is_final: bool) -> None:
    assert Policies(final_errors=("a.b", "auth.*")).is_final(ErrorTypes(("other", kind), ("a.b",))) is is_final


@pytest.mark.parametrize("values", [{"on_delete": "explode"}, {"retry_spread": 1.0}, {"retry_spread": -0.1}], ids=str)
def test_what_another_surface_may_not_ask_for_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicyError):
        named(**values)


def test_lengths_of_policies_may_be_text_or_seconds() -> None:
    retry = RetryPolicy(base="30s", cap=600, jitter="PT5S")  # type: ignore[arg-type]
    assert retry == RetryPolicy(base=30 * SECOND, cap=600 * SECOND, jitter=5 * SECOND)
    assert Policies(fire_within="30d").fire_within == timedelta(days=30)  # type: ignore[arg-type]


class HttpError(OSError):
    """An error of an application."""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (OSError, ("OSError",)),
        ("timeout", ("timeout",)),
        ([HttpError, "requests.*", "OSError", OSError], (f"{__name__}.HttpError", "requests.*", "OSError")),
    ],
    ids=["a class", "a name", "both"],
)
def test_a_policy_of_retries_keeps_the_names_of_errors(given: Any, kept: tuple[str, ...]) -> None:
    policies = Policies(retry=RetryPolicy(retry_on=given), target_retry=RetryPolicy(give_up_on=given))
    assert (policies.retry.retry_on, policies.target_retry.give_up_on) == (kept, kept)
    assert Policies.loads(policies.dumps()) == policies


def test_an_error_is_known_by_its_class_and_by_those_it_derives_from() -> None:
    names = types_of(HttpError())
    assert names.own == ("HttpError", f"{__name__}.HttpError")
    assert {"OSError", "builtins.OSError", "Exception"} <= {*names.inherited}
    assert "object" not in names.inherited
    assert types_of(JobTimeoutException()) == TIMEOUT


HTTP = types_of(HttpError())
ONLY, BUT = "retry_on does not name it", "give_up_on names "


@pytest.mark.parametrize(
    ("policy", "error", "rule"),
    [
        ({}, HTTP, None),
        ({"retry_on": HttpError}, HTTP, None),
        ({"retry_on": OSError}, HTTP, None),
        ({"retry_on": "HttpError"}, HTTP, None),
        ({"retry_on": f"{__name__}.*"}, HTTP, None),
        ({"retry_on": "HttpErr"}, HTTP, ONLY),
        ({"retry_on": [ValueError, KeyError]}, HTTP, ONLY),
        ({"retry_on": OSError}, NO_TYPES, ONLY),
        ({"retry_on": OSError}, TIMEOUT, ONLY),
        ({"retry_on": ["timeout"]}, TIMEOUT, None),
        ({"retry_on": OSError}, LOST, None),
        ({"give_up_on": "lost"}, LOST, BUT + "lost"),
        ({"give_up_on": [KeyError, "OSError"]}, HTTP, BUT + "OSError"),
        ({"give_up_on": KeyError}, HTTP, None),
        ({"retry_on": OSError, "give_up_on": HttpError}, HTTP, f"{BUT}{__name__}.HttpError"),
        ({"retry_on": HttpError, "give_up_on": OSError}, HTTP, BUT + "OSError"),
    ],
)
def test_retry_on_and_give_up_on_say_which_errors_are_tried_again(
    policy: dict[str, Any], error: ErrorTypes, rule: str | None
) -> None:
    assert rule_against(RetryPolicy(**policy), error) == rule


def test_an_error_that_is_both_tried_again_and_given_up_is_refused() -> None:
    with pytest.raises(InvalidPolicyError, match=r"retry.give_up_on: OSError is in retry_on too"):
        RetryPolicy(retry_on=[OSError], give_up_on="OSError")
