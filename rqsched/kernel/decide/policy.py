"""Policies: how a schedule reacts to overlap, missed occurrences, failures and used-up limits. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, TypeAlias, TypeVar

from rqsched.errors import InvalidDurationError, InvalidPolicyError
from rqsched.kernel.decide.limit_options import require_limit, require_rate
from rqsched.kernel.decide.retention import Retention
from rqsched.when.duration import SpanLike, to_span

MAX_DELAY = timedelta(days=366)
"""The longest delay that a policy may name, so that the time of a retry stays within the range of `datetime`."""
SKIP_FIRE_WITHIN = timedelta(seconds=60)
"""How late an occurrence may fire under `missed="skip"` by default."""
DEFAULT_MISSED_LIMIT = 100
MAX_MISSED_LIMIT = 1_000
MAX_ERROR_TYPES = 100
"""The maximum number of error types that one policy may name."""


_MAX_ERROR_NAME = 255
_Member = TypeVar("_Member", bound=StrEnum)


class OverlapPolicy(StrEnum):
    """The reaction to a fire while an earlier run is unfinished."""

    SKIP = "skip"
    """Start nothing; record the skip (default)."""
    BUFFER_ONE = "buffer_one"
    """Keep one run waiting; skip further runs until the waiting run has started."""
    BUFFER_ALL = "buffer_all"
    """Keep every run waiting and start them one after another; `buffer_limit` caps the queue."""
    ALLOW_ALL = "allow_all"
    """Start the new run beside the unfinished runs."""
    CANCEL_OTHER = "cancel_other"
    """Cancel the unfinished runs (cooperatively), then start."""
    TERMINATE_OTHER = "terminate_other"
    """Terminate the unfinished runs (kill their processes), then start."""

    @classmethod
    def of(cls, value: OverlapPolicy | str) -> OverlapPolicy:
        """Read the name of a policy, or an alias from one of the five API documents; raises InvalidPolicyError."""
        text = str(value).strip().lower()
        try:
            return _ALIASES.get(text) or cls(text)
        except ValueError:
            names = ", ".join([*cls, *_ALIASES])
            raise InvalidPolicyError("overlap", f"{value!r} is not one of {names}") from None


KEEPS_ALL = frozenset({OverlapPolicy.BUFFER_ALL, OverlapPolicy.ALLOW_ALL})
"""The policies under which every occurrence gets a run if several occurrences fire together."""


_ALIASES = {
    "allow": OverlapPolicy.ALLOW_ALL,
    "cancel_previous": OverlapPolicy.CANCEL_OTHER,
    "enqueue": OverlapPolicy.BUFFER_ALL,
}
BUFFERING = frozenset({OverlapPolicy.BUFFER_ONE, OverlapPolicy.BUFFER_ALL})
REPLACING = frozenset({OverlapPolicy.CANCEL_OTHER, OverlapPolicy.TERMINATE_OTHER})


class MissedPolicy(StrEnum):
    """The reaction to occurrences whose time has passed without a fire."""

    FIRE_ONCE = "fire_once"
    """Fire the oldest that is at most `fire_within` late; count the others as missed (default; Durable Workflow
    document)."""
    SKIP = "skip"
    """Fire the newest if it is at most `fire_within` (60 s) late; count the others as missed."""
    ALL = "all"
    """Fire the newest `missed_limit` of them; count the others as missed."""


class OnResume(StrEnum):
    """How a resumed schedule continues."""

    NEXT = "next"
    """Continue at the next occurrence after now (default)."""
    ONCE = "once"
    """If occurrences passed during the pause, fire the newest now; otherwise as `next` (Waymark document)."""
    FROM_NOW = "from_now"
    """Continue one interval after now (Pipelit document); for a cron the same as `next`."""

    @classmethod
    def of(cls, value: OnResume | str) -> OnResume:
        """Read a mode; raises InvalidPolicyError."""
        return _member(cls, "on_resume", value)


class Rerun(StrEnum):
    """The occurrences that a backfill runs again, although they already have a run."""

    FAILED = "failed"
    """Occurrences whose run failed or was lost: the run gets one more attempt."""
    ALL = "all"
    """Also occurrences whose history was pruned. It is unknown whether they ran. Without `all`, a backfill assumes that
    they did."""

    @classmethod
    def of(cls, value: Rerun | str) -> Rerun:
        """Read a word; raises InvalidPolicyError."""
        return _member(cls, "rerun", value)


class FailurePolicy(StrEnum):
    """The effect of a failed run on its schedule once its attempts are used up."""

    DEAD = "dead"
    """The schedule becomes `dead` and fires no more (Pipelit document)."""
    CONTINUE = "continue"
    """The schedule continues with its next occurrence."""


class FanOutPolicy(StrEnum):
    """The condition under which a run fails after all its targets have ended."""

    ANY_FAILED = "any_failed"
    """At least one target failed (default)."""
    ALL_FAILED = "all_failed"
    """A target failed and none succeeded."""
    NEVER = "never"
    """The run never fails because of its targets; its counts show the failed targets."""

    def fails(self, counts: Mapping[str, int]) -> bool:
        """Return whether a run has failed, given the number of its targets by status."""
        failed = count_failed(counts)
        if self is FanOutPolicy.ALL_FAILED:
            return failed > 0 and not any(counts.get(status) for status in ("succeeded", "ignored"))
        return self is FanOutPolicy.ANY_FAILED and failed > 0


def count_failed(counts: Mapping[str, int]) -> int:
    """Return how many targets failed or were lost, given the number of targets by status."""
    return sum(counts.get(status, 0) for status in ("failed", "lost"))


class OverlapUntil(StrEnum):
    """How long a run with targets counts as unfinished for the overlap policy."""

    FINISHED = "finished"
    """Until its last target has ended (default)."""
    DISPATCHED = "dispatched"
    """Until its workflow has returned: the next run may begin while targets of this one wait."""


ErrorsLike: TypeAlias = str | type[BaseException] | Sequence[str | type[BaseException]]
"""One or several error classes, or their names. Policies store the names."""


class ErrorTypes(NamedTuple):
    """The names of an attempt's error. The entries of a policy are compared with these names."""

    own: tuple[str, ...] = ()
    """The names of its class, such as `ReadTimeout` and `requests.exceptions.ReadTimeout`, or the name that an external
    worker reported."""
    inherited: tuple[str, ...] = ()
    """The names of its base classes."""


NO_TYPES = ErrorTypes()
"""An unknown error, which has no names."""
TIMEOUT = ErrorTypes(("timeout",))
"""An attempt took longer than its timeout."""
LOST = ErrorTypes(("lost",))
"""The process of an attempt vanished."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed attempt is repeated, and after which delay.

    The k-th retry waits `min(base * factor**(k - 1), cap)`, plus a random part of up to `jitter`
    (`kernel/decide/delays.py`).
    """

    max_retries: int = 3
    """Further attempts after the first; 0 means user code runs at most once."""
    base: timedelta | None = None
    """The first delay. None means the schedule's interval, at most 5 minutes, and 60 s for a cron.

    Delays may be given as text such as `30s`, or as a number of seconds.
    """
    factor: float = 2.0
    """The growth from one delay to the next, at least 1."""
    cap: timedelta | None = None
    """The longest delay; None means 10 x base."""
    jitter: timedelta = timedelta(0)
    """The longest random addition to a delay. For one attempt of a run, the addition is always the same."""
    then: FailurePolicy | str | None = None
    """The effect on the schedule when the attempts of a run are used up: a FailurePolicy or its name.

    None keeps the stored value; for a new schedule it is `continue`.
    """
    max_consecutive_failures: int | None = None
    """If set, the schedule dies after this many failed runs in a row, and `then` has no effect."""
    retry_on: ErrorsLike = ()
    """The errors that are retried; empty means every error. An attempt whose process vanished is retried in any case.

    Give an error class or its name. A name stands alone (`ReadTimeout`) or with its module
    (`requests.exceptions.ReadTimeout`); `requests.*` covers a whole package. A base class such as `OSError` covers its
    subclasses. The name `timeout` stands for an attempt that exceeded its timeout. For errors of external workers, give
    the name that the worker reports.
    """
    give_up_on: ErrorsLike = ()
    """The errors that are never retried, even if `retry_on` covers them. The name `lost` stands for a process that
    vanished."""

    def __post_init__(self) -> None:
        """Refuse invalid values; raises InvalidPolicyError."""
        if self.then is not None:
            object.__setattr__(self, "then", _member(FailurePolicy, "retry.then", self.then))
        _require(_is_count(self.max_retries, 0), "retry.max_retries", "must be a whole number from 0")
        for name in ("base", "cap", "jitter"):
            object.__setattr__(self, name, _length(f"retry.{name}", getattr(self, name)))
        is_number = isinstance(self.factor, (int, float)) and isfinite(self.factor)
        _require(is_number and self.factor >= 1, "retry.factor", "must be a number from 1; delays cannot shrink")
        for name in ("base", "cap"):
            value = getattr(self, name)
            is_delay = value is None or (_is_positive(value) and value <= MAX_DELAY)
            _require(is_delay, f"retry.{name}", f"must be a positive length of at most {MAX_DELAY.days} days")
        is_span = isinstance(self.jitter, timedelta) and timedelta(0) <= self.jitter <= MAX_DELAY
        _require(is_span, "retry.jitter", f"must be a length from 0 to {MAX_DELAY.days} days")
        both = self.base is not None and self.cap is not None
        _require(not both or self.cap >= self.base, "retry.cap", "must not be below base")  # type: ignore[operator]
        limit = self.max_consecutive_failures
        _require(
            limit is None or _is_count(limit, 1), "retry.max_consecutive_failures", "must be a whole number from 1"
        )
        wanted, refused = (_error_names(f"retry.{name}", getattr(self, name)) for name in ("retry_on", "give_up_on"))
        for name in refused:
            _require(name not in wanted, "retry.give_up_on", f"{name} is in retry_on too; remove one of them")
        object.__setattr__(self, "retry_on", wanted)
        object.__setattr__(self, "give_up_on", refused)

    def kills_after(self, consecutive_failures: int) -> bool:
        """Return whether this many failed runs in a row make the schedule `dead`."""
        if self.max_consecutive_failures is not None:
            return consecutive_failures >= self.max_consecutive_failures
        return self.then is FailurePolicy.DEAD


def no_retry() -> RetryPolicy:
    """Return the policy that allows one attempt."""
    return RetryPolicy(max_retries=0)


_COUNT = {"kind": "count"}
"""Marks a field of Policies that takes None, or a whole number from 1."""
_SPAN: dict[str, Any] = {"kind": "span", "most": None}
"""Marks a field of Policies that takes None, or a positive length of time of at most `most` (None: any)."""


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of one schedule. Contradicting combinations are refused."""

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    """The reaction to a fire while an earlier run is unfinished."""
    buffer_limit: int | None = field(default=None, metadata=_COUNT)
    """The maximum number of runs that may wait under `buffer_all`; None is unlimited."""
    missed: MissedPolicy = MissedPolicy.FIRE_ONCE
    """The reaction to occurrences that passed without a fire."""
    spread: timedelta = timedelta(0)
    """Each fire is delayed by one fixed offset below this length. The offset is computed from the schedule."""
    missed_limit: int = DEFAULT_MISSED_LIMIT
    """The maximum number of occurrences for which one fire starts runs under `missed="all"`."""
    fire_within: timedelta | None = field(default=None, metadata=_SPAN)
    """An occurrence that is later than this does not fire and is recorded as missed. None is unlimited."""
    start_within: timedelta | None = field(default=None, metadata=_SPAN | {"most": MAX_DELAY})
    """The longest time that an attempt may wait in its queue; after that it does not start. None is unlimited."""
    on_resume: OnResume = OnResume.NEXT
    """How `resume()` continues by default; the call may override it."""
    on_max_runs: str = "done"
    """The effect when `max_runs` is used up: the schedule is `done`, or with `delete` deleted (Durable Workflow
    document)."""
    max_successes: int | None = field(default=None, metadata=_COUNT)
    """The schedule is done after this many successful runs (Pipelit's `total_repeats`); None is unlimited."""
    environments: tuple[str, ...] = ()
    """A fire starts runs only if RQSCHED_ENVIRONMENT of its process is one of these; if empty, in every process."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How failed attempts are repeated."""
    retry_spread: float = 0.0
    """The largest random change of a retry's delay, as a fraction of the delay (Open Job Spec: 0.5); the cap still
    holds."""
    final_errors: tuple[str, ...] = ()
    """Error types that are not retried (Open Job Spec); `auth.*` covers every type that begins with `auth.`."""
    dead_letter: bool = False
    """Keep a failed run among the dead letters (Open Job Spec)."""
    on_delete: str = "end_runs"
    """The effect of a deletion on waiting runs: `end_runs`, or `keep_runs` (Open Job Spec)."""
    fan_out: FanOutPolicy | str = FanOutPolicy.ANY_FAILED
    """The condition under which a run fails because of its targets: a FanOutPolicy or its name."""
    overlap_until: OverlapUntil | str = OverlapUntil.FINISHED
    """How long a run with targets counts as unfinished: an OverlapUntil or its name."""
    targets: str | None = None
    """The workflow that returns the ids of a run's targets; with None, the run's own workflow may return them."""
    target_retry: RetryPolicy = field(default_factory=no_retry)
    """How failed attempts of a target are repeated; by default they are not."""
    target_timeout: int | None = field(default=None, metadata=_COUNT)
    """The seconds that one attempt of a target may take; None means the timeout of the run."""
    max_parallel: int | None = field(default=None, metadata=_COUNT)
    """The maximum number of targets of one run that are handled at once, over all workers; None is unlimited."""
    limit: str | None = None
    """The group whose limit the runs share. The name may be a template over labels and namespace. None is no group."""
    limit_running: int | None = field(default=None, metadata=_COUNT)
    """How many runs of the group may run at once. Used only if the schedule creates the group."""
    limit_rate: str | None = None
    """How many attempts of the group may start in a window (`Rate`). Used only if the schedule creates the group."""
    retention: str | None = None
    """How much history is kept, in the form that `Retention.parse` reads; None means RQSCHED_RETENTION."""

    def __post_init__(self) -> None:
        """Normalise names and refuse contradictions; raises InvalidPolicyError."""
        if self.retention is not None:
            object.__setattr__(self, "retention", str(Retention.parse(str(self.retention))))
        object.__setattr__(self, "overlap", OverlapPolicy.of(self.overlap))
        object.__setattr__(self, "fan_out", _member(FanOutPolicy, "fan_out", self.fan_out))
        object.__setattr__(self, "overlap_until", _member(OverlapUntil, "overlap_until", self.overlap_until))
        object.__setattr__(self, "missed", _member(MissedPolicy, "missed", self.missed))
        object.__setattr__(self, "on_resume", _member(OnResume, "on_resume", self.on_resume))
        named: Any = self.environments
        environments = (named,) if isinstance(named, str) else tuple(named)
        object.__setattr__(self, "environments", environments)
        object.__setattr__(self, "final_errors", tuple(self.final_errors))
        require_limit("limit", self.limit)
        object.__setattr__(self, "limit_rate", require_rate("limit_rate", self.limit_rate))
        for name in _SPANS_OR_NONE:
            object.__setattr__(self, name, _length(name, getattr(self, name)))
        self._check_values()
        self._check_combinations()

    def _check_values(self) -> None:
        _require(self.on_max_runs in {"done", "delete"}, "on_max_runs", "must be 'done' or 'delete'")
        _require(self.on_delete in {"end_runs", "keep_runs"}, "on_delete", "must be 'end_runs' or 'keep_runs'")
        _require(0 <= self.retry_spread < 1, "retry_spread", "must be from 0 up to, not including, 1")
        for name, most in _SPANS_OR_NONE.items():
            span = getattr(self, name)
            is_allowed = span is None or (_is_positive(span) and (most is None or span <= most))
            bound = "" if most is None else f" of at most {most.days} days"
            _require(is_allowed, name, f"must be a positive length{bound}")
        _require(
            _is_count(self.missed_limit, 1) and self.missed_limit <= MAX_MISSED_LIMIT,
            "missed_limit",
            f"must be a whole number from 1 to {MAX_MISSED_LIMIT}; backfill what is more",
        )
        for name in ("then", "max_consecutive_failures"):
            about_runs = "applies to runs only; set it in retry"
            _require(getattr(self.target_retry, name) is None, f"target_retry.{name}", about_runs)
        for name in _COUNTS_OR_NONE:
            value = getattr(self, name)
            _require(value is None or _is_count(value, 1), name, "must be a whole number from 1, or None for no bound")

    def _check_combinations(self) -> None:
        _require(
            self.buffer_limit is None or self.overlap is OverlapPolicy.BUFFER_ALL,
            "buffer_limit",
            f"caps overlap='buffer_all', but overlap is {self.overlap.value!r}",
        )
        for name, what in (("limit_running", "number"), ("limit_rate", "rate")):
            is_of_group = self.limit is not None or getattr(self, name) is None
            _require(is_of_group, name, f"is the {what} of a group; name the group with limit, or remove it")
        catches_all = self.missed is MissedPolicy.ALL
        _require(
            not catches_all or self.overlap in KEEPS_ALL,
            "missed",
            f"'all' would start only one of the occurrences under overlap={self.overlap.value!r}; choose "
            "overlap='buffer_all' (one after another) or 'allow_all'",
        )
        _require(
            catches_all or self.missed_limit == DEFAULT_MISSED_LIMIT,
            "missed_limit",
            "applies to missed='all' only; remove it or choose missed='all'",
        )

    @property
    def allowed_lateness(self) -> timedelta | None:
        """The greatest lateness at which an occurrence still fires; None is unlimited."""
        if self.fire_within is None and self.missed is MissedPolicy.SKIP:
            return SKIP_FIRE_WITHIN
        return self.fire_within

    @property
    def keeps_runs(self) -> bool:
        """Whether waiting runs continue when the schedule is deleted."""
        return self.on_delete == "keep_runs"

    def is_final(self, error: ErrorTypes) -> bool:
        """Return whether `final_errors` covers the class of an error, so that it is not retried."""
        return any(_names(entry, kind) for entry in self.final_errors for kind in error.own)

    def kept_from(self, stored: Policies) -> Policies:
        """Return these policies. If their `then` is None, it gets the stored value."""
        if self.retry.then is not None or stored.retry.then is None:
            return self
        return replace(self, retry=replace(self.retry, then=stored.retry.then))

    def plain(self) -> dict[str, Any]:
        """Return every policy as JSON-native values; spans are in seconds.

        The policies of Open Job Spec appear only if they are set.
        """
        plain = {name: value for name, value in self._raw().items() if name not in _OJS or value != _DEFAULTS[name]}
        plain["retry"]["then"] = plain["retry"]["then"] or FailurePolicy.CONTINUE.value
        plain["target_retry"] = {name: v for name, v in plain["target_retry"].items() if name not in _OF_RUNS}
        return plain

    @staticmethod
    def plain_of(text: str) -> dict[str, Any]:
        """Return `loads(text).plain()` from a cache, because most schedules of a list have the same text."""
        values, mutable = _plain_of(text)
        return {**values, **{name: copy(values[name]) for name in mutable}}

    def _raw(self) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(json.dumps(_plain(asdict(self))))
        return raw

    def dumps(self) -> str:
        """Return canonical JSON text for the schedule's row. It has only the values that differ from the defaults."""
        kept = _without(self._raw(), _DEFAULTS)
        return json.dumps(kept, sort_keys=True, separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=4096)
    def loads(text: str) -> Policies:
        """Read the text of `dumps`. The same text gives the same object. Fields of a newer release are ignored."""
        given: dict[str, Any] = json.loads(text)
        retry = RetryPolicy(**_values(RetryPolicy, given.pop("retry", {})))
        target_retry = replace(no_retry(), **_values(RetryPolicy, given.pop("target_retry", {})))
        return Policies(**_values(Policies, given), retry=retry, target_retry=target_retry)


@lru_cache(maxsize=4096)
def _plain_of(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values of `plain`, and the keys of the mutable values, which must be copied for each caller."""
    values = Policies.loads(text).plain()
    return values, [name for name, value in values.items() if isinstance(value, (dict, list))]


_SPANS_OR_NONE: dict[str, timedelta | None] = {
    one.name: one.metadata["most"] for one in fields(Policies) if one.metadata.get("kind") == "span"
}
_COUNTS_OR_NONE = [one.name for one in fields(Policies) if one.metadata.get("kind") == "count"]
_SPANS = frozenset({"base", "cap", "jitter", "spread", *_SPANS_OR_NONE})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _plain(value)
        if isinstance(value, dict)
        else value.total_seconds()
        if isinstance(value, timedelta)
        else value
        for name, value in values.items()
    }


def _without(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the values without defaults, and without objects that become empty."""
    kept = {
        name: _without(value, defaults[name]) if isinstance(value, dict) else value for name, value in values.items()
    }
    return {name: value for name, value in kept.items() if value != ({} if isinstance(value, dict) else defaults[name])}


def _values(kind: type[Policies] | type[RetryPolicy], given: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(kind)}
    return {
        name: timedelta(seconds=value) if name in _SPANS and value is not None else value
        for name, value in given.items()
        if name in known
    }


def _names(entry: str, kind: str) -> bool:
    return kind.startswith(entry[:-1]) if entry.endswith(".*") else kind == entry


def rule_against(retry: RetryPolicy, error: ErrorTypes) -> str | None:
    """Return the rule that forbids a retry after this error, as text; None if no rule does."""
    if entry := _first_naming(retry.give_up_on, error):
        return f"give_up_on names {entry}"
    if not retry.retry_on or error == LOST or _first_naming(retry.retry_on, error):
        return None
    return "retry_on does not name it"


def _first_naming(entries: Any, error: ErrorTypes) -> str | None:
    """Return the first entry that names the class of an error or one of its base classes."""
    return next((entry for entry in entries if any(_names(entry, kind) for kinds in error for kind in kinds)), None)


def _error_names(name: str, given: Any) -> tuple[str, ...]:
    """Return the names of one or several errors, given as classes or names."""
    listed = [given] if isinstance(given, (str, type)) else given
    is_list = isinstance(listed, Sequence) and len(listed) <= MAX_ERROR_TYPES
    _require(is_list, name, f"must be a list of at most {MAX_ERROR_TYPES} error classes or names of error classes")
    for one in listed:
        is_error = isinstance(one, type) and issubclass(one, BaseException)
        is_name = isinstance(one, str) and 0 < len(one) <= _MAX_ERROR_NAME and one.isprintable() and " " not in one
        _require(is_error or is_name, name, f"{one!r} is neither an error class nor the name of one")
    return tuple(dict.fromkeys(one if isinstance(one, str) else _error_name(one) for one in listed))


def _error_name(kind: type[BaseException]) -> str:
    """Return the name under which a policy stores an error class: with its module, except `builtins` and `__main__`.

    `__main__` is left out, because the main module of this process may have another name in another process.
    """
    own, with_module = error_names(kind)
    return own if kind.__module__ in {"builtins", "__main__"} else with_module


def error_names(kind: type[BaseException]) -> tuple[str, str]:
    """Return the two names of an error class: alone, and with its module."""
    return kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _length(name: str, value: SpanLike | None) -> timedelta | None:
    try:
        return None if value is None else to_span(value)
    except InvalidDurationError as error:
        raise InvalidPolicyError(name, error.reason) from error


def _is_positive(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _require(holds: bool, name: str, reason: str) -> None:
    if not holds:
        raise InvalidPolicyError(name, reason)


def _member(kind: type[_Member], name: str, value: _Member | str) -> _Member:
    try:
        return kind(str(value).strip().lower())
    except ValueError:
        raise InvalidPolicyError(name, f"{value!r} is not one of {', '.join(kind)}") from None


_OF_RUNS = frozenset({"then", "max_consecutive_failures"})
_OJS = frozenset({"retry_spread", "final_errors", "dead_letter", "on_delete"})
_DEFAULTS = Policies()._raw()
