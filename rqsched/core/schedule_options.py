"""Options: what a caller says of a schedule, checked and turned into a Definition before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from inspect import signature
from typing import Any, TypedDict

from rqsched.core.did_you_mean import did_you_mean
from rqsched.core.model import Definition, changed, dump_spec
from rqsched.core.notifications import OPTIONS, workflow_name
from rqsched.core.payload import ARGUMENT_BYTES, MEMO_BYTES, NOTE_BYTES, json_text, loads, require_labels
from rqsched.core.policy import (
    CatchUp,
    Exhausted,
    FanOutPolicy,
    MissedPolicy,
    OverlapPolicy,
    OverlapUntil,
    RetryPolicy,
    no_retry,
)
from rqsched.errors import InvalidIdError, InvalidInputError, InvalidPayloadError, InvalidPolicyError, InvalidTypeError
from rqsched.spec.duration import SpanLike, to_span
from rqsched.spec.spec import Cron, Every, Member, Once, Spec, SpecLike

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}")
EXECUTORS = ("rq", "external")
"""What may execute a schedule's runs."""
MAX_JITTER = timedelta(days=1)
"""The longest jitter."""
MAX_RUNS = 2**53
"""The greatest `max_runs`: every JSON reader holds it exactly."""
MAX_TIMEOUT = 30 * 86_400
"""The longest timeout in seconds: 30 days."""
MAX_PARALLEL = 10_000
"""The greatest `max_parallel`; leave it out for more."""
MAX_PRIORITY = 1_000
"""The greatest priority, and below zero the least."""
MAX_ENVIRONMENT = 255
"""Characters of the name of an environment."""


class CommonOptions(TypedDict, total=False):
    """The options of a schedule but `connection`, which may name a SQL connection where there is one."""

    timezone: str | None
    """IANA name for cron expressions that name none; default UTC."""
    args: Sequence[Any]
    """Positional arguments of the workflow, JSON-native."""
    kwargs: Mapping[str, Any]
    """Keyword arguments, JSON-native; args and kwargs together at most 256 KiB."""
    overlap: OverlapPolicy | str
    """See OverlapPolicy; default `skip`."""
    buffer_limit: int | None
    """The most runs that wait under `buffer_all`."""
    missed: MissedPolicy | str
    """See MissedPolicy; default `fire_once`."""
    catch_up_window: SpanLike | None
    """Occurrences later than this count as missed."""
    catch_up_limit: int
    """The most occurrences one fire starts under `missed="all"`; default 100."""
    catch_up: CatchUp | str
    """Where `resume()` continues; default `next`."""
    jitter: SpanLike
    """The most a fire is delayed."""
    max_runs: int | None
    """How many runs may start."""
    on_exhausted: str
    """`done` (default) or `delete`, when `max_runs` is used up."""
    total_repeats: int | None
    """Done after so many successes; None or 0 is unlimited."""
    environments: Sequence[str]
    """Fire only where RQSCHED_ENV is one of these."""
    retry: RetryPolicy | None
    """How failed attempts are repeated."""
    fan_out: FanOutPolicy | str
    """When a run with targets fails: `any_failed` (default), `all_failed` or `never`; see FanOutPolicy."""
    overlap_until: OverlapUntil | str
    """How long `overlap` sees a run with targets: `finished` (default) or `dispatched`; see OverlapUntil."""
    targets: str | Callable[..., Any] | None
    """What names the targets that a run calls its workflow for, each in a job of its own; a function, or its name."""
    target_retry: RetryPolicy | None
    """How failed attempts of a target are repeated; by default they are not."""
    target_timeout: SpanLike | None
    """How long one attempt of a target may take, in whole seconds; default the run's timeout."""
    max_parallel: int | None
    """The most targets of one run that are handled at once, over all workers."""
    retention: str | int | None
    """How much history is kept: `90d`, `1000` runs, `90d 1000`, or `0` for all; default RQSCHED_RETENTION."""
    timeout: SpanLike | None
    """How long one attempt may take, in whole seconds."""
    queue: str | None
    """The queue of its runs."""
    priority: int
    """Above 0: at the front of the queue."""
    labels: Mapping[str, str]
    """Up to 64 short texts to filter by."""
    memo: Mapping[str, Any]
    """JSON-native values, at most 256 KiB."""
    search_attributes: Mapping[str, Any]
    """JSON-native values to query by."""
    description: str | None
    """Free text."""
    owner: str | None
    """Who owns it."""
    executor: str
    """`rq` (default) or `external`."""
    on_failure: str | None
    """The workflow that is run when a run failed or was lost, and when the schedule is overdue."""
    on_recovery: str | None
    """The workflow that is run at the first success after that."""
    expect_success_within: timedelta | str | None
    """The schedule is overdue when no run succeeded for so long, such as `26h`."""
    notifications: Mapping[str, Any] | None
    """`webhook`, `events`, `heartbeat` and `sentry`: where else to tell it; see docs/notifications.md."""


class Options(CommonOptions, total=False):
    """The options of a schedule, besides its id, workflow and spec. Each has a default."""

    connection: str | None
    """The named Redis of its runs."""


def dies_by_default(options: Options) -> Options:
    """Return a create's options with `dead` for what follows a failed run, unless they say what follows.

    So has the Pipelit document it, for creates in its words: `interval_seconds` or `total_repeats`.
    """
    retry = options.get("retry") or RetryPolicy()
    if retry.then is not None or retry.max_consecutive_failures is not None:
        return options
    dead: Options = {**options, "retry": replace(retry, then=Exhausted.DEAD)}
    return dead


def is_id(value: object) -> bool:
    """Return whether a value is a valid schedule id or namespace."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def require_id(value: object, field: str = "schedule_id") -> str:
    """Check a schedule id or namespace; raises InvalidIdError."""
    if isinstance(value, str) and is_id(value):
        return value
    raise InvalidIdError(field, f"{value!r} is refused; use 1 to 255 of A-Z a-z 0-9 . _ : -, a letter or digit first")


def require_note(value: object, field: str = "note") -> str | None:
    """Check a note: at most 4 KiB of text; raises InvalidPayloadError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidPayloadError(field, f"must be text, not {type(value).__name__}")
    json_text(field, value, NOTE_BYTES)
    return value


def require_known(options: Mapping[str, Any], call: Callable[..., Any] | None = None) -> None:
    """Check that options exist; raises InvalidTypeError, which is a TypeError too and names the nearest one.

    It may also be a parameter of the method that was called with them.
    """
    for name in sorted(options.keys() - OPTIONS_KNOWN):
        parameters = set() if call is None else signature(call).parameters.keys() - {"self", "options"}
        known = {*Options.__annotations__, *parameters}
        hint = did_you_mean(name, known) or f"; the options are {', '.join(sorted(known))}"
        raise InvalidTypeError(name, f"is not an option{hint}")


def define(
    base: Definition | None,
    options: Mapping[str, Any],
    *,
    workflow: str | None = None,
    spec: SpecLike | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Definition:
    """Build a Definition from a base (None for a new schedule) and the options given now.

    Raises a kind of InvalidInputError that names the refused option.
    """
    require_known(options)
    timezone = options.get("timezone")
    if base is None:
        base = Definition(spec=_spec_text(_given(spec), timezone), workflow=workflow or "")
    elif spec is not None:
        base = replace(base, spec=dump_spec(Spec.coerce(spec, timezone or _kept_timezone(base, spec))))
    elif timezone is not None:
        base = replace(base, spec=dump_spec(replace(base.parsed_spec, timezone=timezone)))
    changes = {name: check(options[name]) for name, check in _PLAIN.items() if name in options}
    changes |= {"workflow": workflow} if workflow else {}
    changes |= {"defaults": json_text("defaults", dict(defaults), MEMO_BYTES)} if defaults is not None else {}
    changes |= {"action": _action(base, options), "policies": _policies(base, options)}
    changes |= {"notifications": _notifications(base, options)}
    definition = replace(base, **changes)
    _require_consistent(definition)
    return definition


def _kept_timezone(base: Definition, spec: SpecLike) -> str | None:
    """Return a known schedule's zone for a new spec that names none; a whole Spec is taken as it is."""
    return None if isinstance(spec, Spec | Mapping) else base.parsed_spec.timezone


def _spec_text(spec: SpecLike, timezone: str | None) -> str:
    """Return the canonical text of a spec; that of a member alone, which many schedules share, is remembered."""
    if isinstance(spec, Cron | Every | Once) and isinstance(timezone, str | None):
        return _member_text(spec, timezone)
    return dump_spec(Spec.coerce(spec, timezone))


@lru_cache(maxsize=1024)
def _member_text(member: Member, timezone: str | None) -> str:
    return dump_spec(Spec.coerce(member, timezone))


def _given(spec: SpecLike | None) -> SpecLike:
    if spec is None:
        raise InvalidInputError("spec", "is missing; give Cron, Every, Once or a Spec")
    return spec


def _action(base: Definition, options: Mapping[str, Any]) -> str:
    if "args" not in options and "kwargs" not in options:
        return base.action
    args, kwargs = options.get("args"), options.get("kwargs")
    return merged_action(base.action, args, kwargs)


def merged_action(action: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
    """Replace the arguments in an action's text; None keeps those it has."""
    if isinstance(args, (str, bytes)) or not (args is None or isinstance(args, Sequence)):
        raise InvalidPayloadError("args", f"must be a list, not {type(args).__name__}")
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise InvalidPayloadError("kwargs", f"must be a mapping, not {type(kwargs).__name__}")
    payload = loads(action)
    if args is not None:
        payload["args"] = list(args)
    if kwargs is not None:
        payload["kwargs"] = dict(kwargs)
    return json_text("args and kwargs", payload, ARGUMENT_BYTES)


def with_arguments(definition: Definition, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Definition:
    """Return a definition with these arguments of its workflow; None keeps those it has.

    Raises InvalidPayloadError for arguments that `define` refuses.
    """
    if args is None and kwargs is None:
        return definition
    return changed(definition, action=merged_action(definition.action, args, kwargs))


_POLICY_NAMES = {
    "overlap": "overlap",
    "buffer_limit": "buffer_limit",
    "missed": "missed",
    "catch_up_window": "catch_up_window",
    "catch_up_limit": "catch_up_limit",
    "catch_up": "resume",
    "on_exhausted": "on_exhausted",
    "total_repeats": "max_successes",
    "environments": "environments",
    "retry": "retry",
    "retry_spread": "retry_spread",
    "final_errors": "final_errors",
    "dead_letter": "dead_letter",
    "on_delete": "on_delete",
    "fan_out": "fan_out",
    "overlap_until": "overlap_until",
    "targets": "targets",
    "target_retry": "target_retry",
    "target_timeout": "target_timeout",
    "max_parallel": "max_parallel",
    "retention": "retention",
}


def _policies(base: Definition, options: Mapping[str, Any]) -> str:
    changes = {field: options[name] for name, field in _POLICY_NAMES.items() if name in options}
    if not changes:
        return base.policies
    for name, default in (("retry", RetryPolicy), ("target_retry", no_retry)):
        if name in changes:
            changes[name] = _retry(name, changes[name], default())
    if "target_timeout" in changes:
        changes["target_timeout"] = timeout_seconds(changes["target_timeout"], "target_timeout")
    if "max_parallel" in changes:
        changes["max_parallel"] = _count("max_parallel", 1, MAX_PARALLEL)(changes["max_parallel"])
    if changes.get("max_successes") == 0:
        changes["max_successes"] = None
    if "targets" in changes:
        changes["targets"] = workflow_name("targets", changes["targets"])
    if "environments" in changes:
        changes["environments"] = _environments(changes["environments"])
    if "catch_up_window" in changes:
        changes["catch_up_window"] = _span_or_none("catch_up_window", changes["catch_up_window"])
    return replace(base.parsed_policies, **changes).dumps()


def _notifications(base: Definition, options: Mapping[str, Any]) -> str:
    given = {name: options[name] for name in OPTIONS if name in options}
    if not given:
        return base.notifications
    if "expect_success_within" in given:
        given["expect_success_within"] = _span_or_none("expect_success_within", given["expect_success_within"])
    return base.parsed_notifications.with_options(given).dumps()


def _environments(names: Any) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, (str, bytes))
    if not is_list or not all(isinstance(name, str) and 0 < len(name) <= MAX_ENVIRONMENT for name in names):
        raise InvalidPolicyError("environments", "must be a list of names, such as ['production']")
    return tuple(names)


def _retry(name: str, policy: Any, default: RetryPolicy) -> RetryPolicy:
    if policy is None:
        return default
    if not isinstance(policy, RetryPolicy):
        raise InvalidPolicyError(name, f"must be a RetryPolicy, not {type(policy).__name__}")
    return policy


def _require_consistent(definition: Definition) -> None:
    spec, policies = definition.parsed_spec, definition.parsed_policies
    if policies.targets is not None and definition.executor == "external":
        raise InvalidPolicyError("targets", "are named by a worker of rqsched; external workers take whole runs")
    if spec.is_from_completion and policies.overlap is not OverlapPolicy.SKIP:
        raise InvalidPolicyError("overlap", "a from_completion interval never overlaps itself; leave overlap='skip'")
    if spec.is_from_completion and policies.missed is MissedPolicy.ALL:
        raise InvalidPolicyError("missed", "a from_completion interval has nothing to catch up; leave 'fire_once'")
    if spec.is_from_completion and definition.jitter:
        raise InvalidPolicyError("jitter", "does not apply to a from_completion interval; remove it")


def _span_or_none(field: str, value: Any) -> timedelta | None:
    return None if value is None else to_span(value, field)


def timeout_seconds(value: SpanLike | None, field: str = "timeout") -> int | None:
    """Return the seconds of a timeout, a length as every other; None stays None.

    Raises InvalidDurationError for what is not a length, InvalidInputError for one that is not 1 s to 30 days, whole.
    """
    length = _span_or_none(field, value)
    if length is None:
        return None
    seconds = length.total_seconds()
    if not (seconds.is_integer() and 1 <= seconds <= MAX_TIMEOUT):
        days = MAX_TIMEOUT // 86_400
        raise InvalidInputError(field, f"must be whole seconds from 1 s to {days} days, such as 90, '10m' or 'PT10M'")
    return int(seconds)


def _jitter(value: Any) -> timedelta:
    jitter = _span_or_none("jitter", value) or timedelta(0)
    if not timedelta(0) <= jitter <= MAX_JITTER:
        raise InvalidInputError("jitter", f"must be from 0 to {MAX_JITTER.days} day")
    return jitter


def _count(field: str, least: int, most: int) -> Callable[[Any], int | None]:
    def check(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInputError(field, f"must be a whole number from {least} to {most}, or None")
        return value

    return check


def _priority(value: Any) -> int:
    return _count("priority", -MAX_PRIORITY, MAX_PRIORITY)(value) or 0


def _queue(field: str) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not _QUEUE.fullmatch(value):
            raise InvalidIdError(field, f"{value!r} is refused; use 1 to 128 of A-Z a-z 0-9 . _ : -")
        return value

    return check


def _executor(value: Any) -> str:
    if value not in EXECUTORS:
        raise InvalidInputError("executor", f"{value!r} is not one of {', '.join(EXECUTORS)}")
    return str(value)


def _object(field: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value is not None and not isinstance(value, Mapping):
            raise InvalidPayloadError(field, f"must be an object, not {type(value).__name__}")
        return json_text(field, dict(value or {}), MEMO_BYTES)

    return check


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "jitter": _jitter,
    "max_runs": _count("max_runs", 1, MAX_RUNS),
    "timeout": timeout_seconds,
    "queue": _queue("queue"),
    "connection": _queue("connection"),
    "priority": _priority,
    "labels": require_labels,
    "memo": _object("memo"),
    "search_attributes": _object("search_attributes"),
    "description": lambda value: require_note(value, "description"),
    "owner": lambda value: None if value is None else require_id(value, "owner"),
    "executor": _executor,
    "managed_by": lambda value: value,
    "surface": _object("surface"),
}
OPTIONS_KNOWN = frozenset({*_PLAIN, *_POLICY_NAMES, *OPTIONS, "args", "kwargs", "timezone"})
"""The name of every option."""
