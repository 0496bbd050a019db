"""Check the options that a caller gave for a schedule, and build its Definition. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from typing import Any

from rqsched.errors import (
    InvalidInputError,
    InvalidPayloadError,
    InvalidPolicyError,
    InvalidSpecError,
    InvalidTypeError,
    did_you_mean,
)
from rqsched.kernel.decide.limit_options import name_of
from rqsched.kernel.decide.model import Definition, changed, dump_spec
from rqsched.kernel.decide.notifications import OPTIONS as TOLD_BY
from rqsched.kernel.decide.notifications import TARGETS
from rqsched.kernel.decide.options import OPTIONS, Kind, Options, require_object
from rqsched.kernel.decide.payload import ARGUMENT_BYTES, MEMO_BYTES, json_text, loads
from rqsched.kernel.decide.policy import FailurePolicy, MissedPolicy, OverlapPolicy, RetryPolicy, no_retry
from rqsched.when.moved import ON_EXCLUDED
from rqsched.when.spec import After, Cron, Every, Member, Once, Spec, SpecLike

_SURFACE: Mapping[str, Callable[[str, Any], Any] | None] = {
    "managed_by": None,
    "surface": require_object,
    "retry_spread": None,
    "final_errors": None,
    "dead_letter": None,
    "on_delete": None,
}
"""The options that only a sync, or the API of another system, may set."""
OPTIONS_KNOWN = frozenset({*OPTIONS, *_SURFACE})
"""The names of all options that `define` takes."""
_POLICY_FIELDS = {name: option.policy for name, option in OPTIONS.items() if option.policy is not None} | {
    name: name for name in ("retry_spread", "final_errors", "dead_letter", "on_delete")
}
_OF_ACTION = frozenset({"args", "kwargs"})
_STORED_AS_JSON = frozenset({Kind.OBJECT, Kind.ATTRIBUTES, Kind.LABELS})
_CLOCKS = ("dst_gap", "dst_fold")
_OF_SPEC = frozenset({"timezone", "exclude", "on_excluded", *_CLOCKS})
_COLUMNS = OPTIONS_KNOWN - _OF_SPEC - _OF_ACTION - _POLICY_FIELDS.keys() - TOLD_BY
_CHECKS = {name: option.check for name, option in OPTIONS.items()} | dict(_SURFACE)


def dies_by_default(options: Options) -> Options:
    """Return a new schedule's options. If they set neither `then` nor `max_consecutive_failures`, set `then` to `dead`.

    Both are fields of `retry`. The Pipelit document has this default for schedules that are created over HTTP with
    `interval_seconds` or `total_repeats`.
    """
    retry = options.get("retry") or {}
    if isinstance(retry, Mapping):
        says = retry.get("then") is not None or retry.get("max_consecutive_failures") is not None
        dead: Options = {**options, "retry": {**retry, "then": FailurePolicy.DEAD}}
    else:
        says = retry.then is not None or retry.max_consecutive_failures is not None
        dead = {**options, "retry": replace(retry, then=FailurePolicy.DEAD)}
    return options if says else dead


def require_known(options: Mapping[str, Any], call: Callable[..., Any] | None = None) -> None:
    """Check that options exist; raises InvalidTypeError, a TypeError whose message suggests the nearest name.

    `call` is the method that got the options; its parameters count as possible names.
    """
    for name in sorted(options.keys() - OPTIONS_KNOWN):
        parameters = set() if call is None else signature(call).parameters.keys() - {"self", "options"}
        known = {*OPTIONS, *parameters}
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
    """Build a Definition from a base (None for a new schedule) and the given options.

    Raises InvalidInputError, or a subclass, that names the refused option.
    """
    require_known(options)
    timezone = options.get("timezone")
    kept = None if base is None or spec is None else base.parsed_spec
    if base is None:
        base = Definition(spec=_spec_text(spec, timezone), workflow=workflow or "")
    elif spec is not None:
        # If the new spec is a single member without a time zone, use the schedule's zone. A whole Spec keeps its own
        # zone.
        zone = None if isinstance(spec, Spec | Mapping | After) else base.parsed_spec.timezone
        base = replace(base, spec=dump_spec(Spec.coerce(spec, timezone or zone)))
    elif timezone is not None:
        base = replace(base, spec=dump_spec(replace(base.parsed_spec, timezone=timezone)))
    given = {name: value if (check := _CHECKS[name]) is None else check(name, value) for name, value in options.items()}
    base = _excluding(base, given, kept, has_new_spec=spec is not None)
    base = _with_clocks(base, given, has_new_spec=spec is not None)
    base = with_arguments(base, given.get("args"), given.get("kwargs"))
    changes = {name: value for name, value in given.items() if name in _COLUMNS}
    changes |= {"workflow": workflow} if workflow else {}
    changes |= {"defaults": json_text("defaults", dict(defaults), MEMO_BYTES)} if defaults is not None else {}
    told = {name: given[name] for name in TOLD_BY if name in given}
    notifications = base.parsed_notifications.with_options(told).dumps() if told else base.notifications
    changes |= {"policies": _policies(base, given), "notifications": notifications}
    definition = replace(base, **changes)
    _require_consistent(definition)
    return definition


def _spec_text(spec: SpecLike | None, timezone: str | None) -> str:
    """Return the canonical text of a spec. The text of a single member is cached, because many schedules share it."""
    if spec is None:
        raise InvalidInputError("spec", "is missing; give Cron, Every, Once, After or a Spec")
    if isinstance(spec, Cron | Every | Once | After) and isinstance(timezone, str | None):
        return _member_text(spec, timezone)
    return dump_spec(Spec.coerce(spec, timezone))


@lru_cache(maxsize=1024)
def _member_text(member: Member, timezone: str | None) -> str:
    return dump_spec(Spec.coerce(member, timezone))


def _excluding(base: Definition, given: Mapping[str, Any], kept: Spec | None, *, has_new_spec: bool) -> Definition:
    """Return a definition with the exclusions of the options, else of its spec, else of `kept` (the earlier spec).

    Raises InvalidSpecError if an option and the new spec contradict each other.
    """
    spec, changes = base.parsed_spec, dict[str, Any]()
    for name, nothing in (("exclude", ()), ("on_excluded", ON_EXCLUDED[0])):
        own, wanted = getattr(spec, name), given.get(name)
        if has_new_spec and nothing not in {own, wanted} and wanted not in {None, own}:
            raise InvalidSpecError(name, "differs from the one in the spec; give only one")
        if wanted is None or (has_new_spec and wanted == nothing):
            wanted = own
        if name not in given and own == nothing and kept is not None:
            wanted = getattr(kept, name)
        if wanted != own:
            changes[name] = wanted
    return replace(base, spec=dump_spec(replace(spec, **changes))) if changes else base


def _with_clocks(base: Definition, given: Mapping[str, Any], *, has_new_spec: bool) -> Definition:
    """Return a definition with the clock-change rules (`dst_gap`, `dst_fold`) of the options; raises InvalidSpecError.

    If neither the options nor the spec have a rule, `with_clocks` in `kernel/decide/lifecycle.py` sets it later.
    """
    said = {name: given[name] for name in _CLOCKS if given.get(name) is not None}
    if not said:
        return base
    spec = base.parsed_spec
    for name, value in said.items():
        if has_new_spec and getattr(spec, name) not in {None, value}:
            raise InvalidSpecError(name, "differs from the one in the spec; give only one")
    return replace(base, spec=dump_spec(replace(spec, **said)))


def with_arguments(definition: Definition, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Definition:
    """Return a definition with new arguments for its workflow; see `action_with`."""
    if args is None and kwargs is None:
        return definition
    return changed(definition, action=action_with(definition.action, args, kwargs))


def action_with(action: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
    """Return the JSON of an action with new arguments; None keeps the current ones.

    Raises InvalidPayloadError if `args` is not a list, if `kwargs` is not a mapping, or if the values are too long or
    not JSON-native.
    """
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


def value_of(name: str, definition: Definition) -> Any:
    """Return the value of an option in a definition, in the form that `define` takes."""
    option, told = OPTIONS[name], definition.parsed_notifications
    if name == "timezone":
        return definition.parsed_spec.timezone
    if name == "exclude":
        return list(definition.parsed_spec.exclude)
    if name in _CLOCKS and definition.parsed_spec.after is not None:  # a downstream schedule has no local times
        return option.default
    if name == "on_excluded":
        return definition.parsed_spec.on_excluded
    if name in _CLOCKS:
        return getattr(definition.parsed_spec, name) or {"dst_gap": "shift", "dst_fold": "first"}[name]
    if name in _OF_ACTION:
        return loads(definition.action)[name]
    if option.kind is Kind.NOTIFICATIONS:
        return {one: value for one in TARGETS if (value := getattr(told, one))} or None
    if name in TOLD_BY:
        return getattr(told, name)
    value = getattr(definition, name) if option.policy is None else getattr(definition.parsed_policies, option.policy)
    return loads(value) if option.kind in _STORED_AS_JSON else value


def _policies(base: Definition, given: Mapping[str, Any]) -> str:
    changes = {field: given[name] for name, field in _POLICY_FIELDS.items() if name in given}
    if not changes:
        return base.policies
    stored = base.parsed_policies
    for name, blank in (("retry", RetryPolicy()), ("target_retry", no_retry())):
        if name in changes:
            changes[name] = read_retry(name, changes[name], getattr(stored, name), blank)
    return replace(stored, **changes).dumps()


def read_retry(name: str, value: Any, stored: RetryPolicy, blank: RetryPolicy) -> RetryPolicy:
    """Return the retry policy for the value of an option. A mapping changes fields of `stored`.

    None stands for the default, `blank`, and a None in the mapping for the default of its field. Raises
    InvalidPolicyError.
    """
    if value is None or isinstance(value, RetryPolicy):
        return blank if value is None else value
    if not isinstance(value, Mapping):
        raise InvalidPolicyError(name, f"must be a RetryPolicy or a mapping of its fields, not {type(value).__name__}")
    for field in sorted(value.keys() - RetryPolicy.__dataclass_fields__.keys()):
        known = RetryPolicy.__dataclass_fields__
        hint = did_you_mean(field, known) or f"; the fields are {', '.join(known)}"
        raise InvalidPolicyError(f"{name}.{field}", f"is not known{hint}")
    try:
        return replace(stored, **{field: getattr(blank, field) if one is None else one for field, one in value.items()})
    except InvalidPolicyError as error:
        raise InvalidPolicyError(error.field.replace("retry", name, 1), error.reason) from None


def _require_consistent(definition: Definition) -> None:
    spec, policies = definition.parsed_spec, definition.parsed_policies
    if policies.targets is not None and definition.executor == "external":
        raise InvalidPolicyError("targets", "need a worker of rqsched; external workers take whole runs")
    if policies.limit is not None:
        name_of(policies.limit, "namespace", definition.labels)
    if spec.is_from_completion and policies.overlap is not OverlapPolicy.SKIP:
        raise InvalidPolicyError("overlap", "a from_completion interval never overlaps itself; leave overlap='skip'")
    if spec.is_from_completion and policies.missed is MissedPolicy.ALL:
        raise InvalidPolicyError("missed", "a from_completion interval never has missed occurrences; leave 'fire_once'")
    for name, delay in (("jitter", definition.jitter), ("spread", policies.spread)):
        if spec.is_from_completion and delay:
            raise InvalidPolicyError(name, "does not apply to a from_completion interval; remove it")
        if spec.after is not None and delay:
            raise InvalidPolicyError(name, "needs times, and a schedule that comes after another has none; remove it")
