"""The options of a schedule: one table, from which every surface derives its input, output and documentation.

To add an option, add an entry to `Options`, add a column or a field of Policies that stores it, and write the code that
uses it. The HTTP models, the flags of the commands, the sync file, the client, the dashboard's form and docs/options.md
are derived from the entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypedDict, get_type_hints

from rqsched.errors import InvalidIdError, InvalidInputError, InvalidPayloadError, InvalidPolicyError
from rqsched.kernel.decide.limit_options import MAX_NUMBER, require_limit, require_rate
from rqsched.kernel.decide.notifications import workflow_name
from rqsched.kernel.decide.payload import MEMO_BYTES, NOTE_BYTES, json_text, require_labels
from rqsched.kernel.decide.policy import (
    DEFAULT_MISSED_LIMIT,
    MAX_MISSED_LIMIT,
    FailurePolicy,
    FanOutPolicy,
    MissedPolicy,
    OnResume,
    OverlapPolicy,
    OverlapUntil,
    RetryPolicy,
)
from rqsched.when.duration import SpanLike, to_span
from rqsched.when.exclusion import MAX_EXCLUSIONS, ExcludeLike, require_exclusions
from rqsched.when.moved import ON_EXCLUDED, require_on_excluded
from rqsched.when.zones import FOLDS, GAPS, require_choice

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}")
EXECUTORS = ("rq", "external")
"""The executors of runs."""
MAX_DELAY = timedelta(days=1)
"""The longest jitter, and the longest spread."""
MAX_COUNT = 2**53
"""The maximum of numbers that have no other maximum. Every JSON parser reads it exactly."""
MAX_TIMEOUT = 30 * 86_400
"""The longest timeout in seconds: 30 days."""
MAX_PARALLEL = 10_000
"""The maximum of `max_parallel`. Without `max_parallel` the number is unlimited."""
MAX_PRIORITY = 1_000
"""The maximum priority. The minimum is its negative."""
MAX_ENVIRONMENT = 255
"""The maximum length of an environment's name, in characters."""

WHEN, WHAT, POLICY, TARGETS, METADATA, NOTIFICATIONS = "When", "What", "Policy", "Targets", "Metadata", "Notifications"
"""The groups in which the options are listed."""


class Kind(StrEnum):
    """The type of an option's value. A surface reads and shows all values of a kind in the same way."""

    TEXT = "text"
    """A text."""
    CHOICE = "choice"
    """One of `choices`."""
    COUNT = "count"
    """A whole number from `least` to `most`."""
    NUMBER = "number"
    """A number."""
    LENGTH = "length"
    """A length of time: a timedelta, seconds, or text such as `30m` or `PT30M`."""
    NAMES = "names"
    """A list of names."""
    TEXTS = "texts"
    """A text, or a list of texts. Each text may contain commas."""
    ARGUMENTS = "arguments"
    """A JSON list."""
    OBJECT = "object"
    """A JSON object."""
    LABELS = "labels"
    """An object of texts."""
    ATTRIBUTES = "attributes"
    """An object of JSON values to query by."""
    RETRY = "retry"
    """A RetryPolicy, or a mapping of the fields to change."""
    NOTIFICATIONS = "notifications"
    """A mapping of `webhook`, `events`, `heartbeat` and `sentry`."""


class Option(NamedTuple):
    """The description of one option, which all surfaces use."""

    kind: Kind
    """The type of its value."""
    help: str
    """Its effect in one sentence, for `--help`, OpenAPI and the reference."""
    group: str
    """The heading that the option is listed under."""
    default: Any = None
    """The value of a schedule without the option. `--unset`, and null in a change over HTTP, set the option to this
    value."""
    example: Any = None
    """A JSON value for the documentation."""
    check: Callable[[str, Any], Any] | None = None
    """Returns the value to store, or raises a subclass of InvalidInputError. If there is no such function, the class
    that stores the value checks it."""
    policy: str | None = None
    """The field of Policies that stores the value. None means the field of Definition or Notifications with the name of
    the option."""
    choices: tuple[str, ...] = ()
    """The values of a choice."""
    least: int = 1
    """The minimum of a count."""
    most: int = MAX_COUNT
    """The maximum of a count."""
    most_characters: int = 255
    """The maximum length of a text."""
    is_number_allowed: bool = False
    """Whether a text may also be given as a number, such as an owner's id in another system."""
    flags: tuple[str, ...] = ()
    """The flags of the commands. If it is empty, the commands take `--set NAME=VALUE`."""
    is_fixed: bool = False
    """Whether the value is set when the schedule is created, and can never change."""


def help_of(option: Option | Part) -> str:
    """Return the help text of an option or of its part, with the values of a choice."""
    return f"{option.help} One of {', '.join(option.choices)}." if option.choices else option.help


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


def require_key(key: str) -> str:
    """Check an idempotency key: 1 to 255 printable characters; raises InvalidInputError."""
    if not isinstance(key, str) or not 1 <= len(key) <= 255 or not key.isprintable():
        raise InvalidInputError("idempotency_key", "must be 1 to 255 printable characters")
    return key


def timeout_seconds(field: str, value: SpanLike | None) -> int | None:
    """Return a timeout in seconds; None stays None.

    Raises InvalidDurationError if the value is not a length of time. Raises InvalidInputError if the length is not
    from 1 s to 30 days in whole seconds.
    """
    length = _length(field, value)
    if length is None:
        return None
    seconds = length.total_seconds()
    if not (seconds.is_integer() and 1 <= seconds <= MAX_TIMEOUT):
        days = MAX_TIMEOUT // 86_400
        raise InvalidInputError(field, f"must be whole seconds from 1 s to {days} days, such as 90, '10m' or 'PT10M'")
    return int(seconds)


def _length(name: str, value: Any) -> timedelta | None:
    return None if value is None else to_span(value, name)


def _delay(name: str, value: Any) -> timedelta:
    delay = _length(name, value) or timedelta(0)
    if not timedelta(0) <= delay <= MAX_DELAY:
        raise InvalidInputError(name, f"must be from 0 to {MAX_DELAY.days} day")
    return delay


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    option = OPTIONS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not option.least <= value <= option.most:
        refused = InvalidInputError if option.policy is None else InvalidPolicyError
        raise refused(name, f"must be a whole number from {option.least} to {option.most}, or None")
    return value


def _queue(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise InvalidIdError(name, f"{value!r} is refused; use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return value


def _executor(name: str, value: Any) -> str:
    if value not in EXECUTORS:
        raise InvalidInputError(name, f"{value!r} is not one of {', '.join(EXECUTORS)}")
    return str(value)


def require_object(name: str, value: Any) -> str:
    """Return an object as JSON text. Raises InvalidPayloadError for another type, and for more than 256 KiB."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidPayloadError(name, f"must be an object, not {type(value).__name__}")
    return json_text(name, dict(value or {}), MEMO_BYTES)


def _environments(name: str, names: Any) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, (str, bytes))
    if not is_list or not all(isinstance(one, str) and 0 < len(one) <= MAX_ENVIRONMENT for one in names):
        raise InvalidPolicyError(name, "must be a list of names, such as ['production']")
    return tuple(names)


class CommonOptions(TypedDict, total=False):
    """The options of a schedule except `connection`, which in Python may also be a connection of SQLAlchemy."""

    timezone: Annotated[
        str | None,
        Option(Kind.TEXT, "The IANA timezone of cron expressions that name none.", WHEN, "UTC", "Europe/Berlin",
               flags=("--timezone",)),
    ]  # fmt: skip
    exclude: Annotated[
        ExcludeLike | None,
        Option(Kind.TEXTS, "Times at which it does not fire: dates, ranges of dates, weekly windows and calendars.",
               WHEN, (), ["2026-12-24/2027-01-01", "Sat, Sun"],
               lambda name, value: require_exclusions(() if value is None else value, name),
               most=MAX_EXCLUSIONS, flags=("--exclude",)),
    ]  # fmt: skip
    on_excluded: Annotated[
        str | None,
        Option(Kind.CHOICE, "What happens to an occurrence on an excluded day. skip: it does not fire; next, previous: "
               "it moves to the nearest day after or before it.",
               WHEN, ON_EXCLUDED[0], "next", lambda _, value: require_on_excluded(value), choices=ON_EXCLUDED),
    ]  # fmt: skip
    dst_gap: Annotated[
        str | None,
        Option(Kind.CHOICE, "What happens if the clocks skip its local time. shift: it fires later by the length of "
               "the gap; skip: it does not fire.", WHEN, GAPS[0], "skip", require_choice, choices=GAPS),
    ]  # fmt: skip
    dst_fold: Annotated[
        str | None,
        Option(Kind.CHOICE, "What happens if the clocks show its local time twice. first: it fires the first time; "
               "both: it fires both times.", WHEN, FOLDS[0], "both", require_choice, choices=FOLDS),
    ]  # fmt: skip
    jitter: Annotated[
        SpanLike, Option(Kind.LENGTH, "The longest random delay of a fire.", WHEN, timedelta(0), "30s", _delay)
    ]
    spread: Annotated[
        SpanLike,
        Option(Kind.LENGTH, "All its fires have the same delay, from 0 to this, computed from its namespace and id.",
               WHEN,
               timedelta(0), "2h", _delay, "spread"),
    ]  # fmt: skip
    args: Annotated[
        Sequence[Any],
        Option(Kind.ARGUMENTS, "Positional arguments of the workflow.", WHAT, [], ["eu", 2], flags=("--args",)),
    ]
    kwargs: Annotated[
        Mapping[str, Any],
        Option(
            Kind.OBJECT,
            "Keyword arguments; args and kwargs together at most 256 KiB.",
            WHAT,
            {},
            {"region": "eu"},
            flags=("--kwargs",),
        ),
    ]
    queue: Annotated[
        str | None,
        Option(Kind.TEXT, "The queue of its runs; default the workflow's.", WHAT, None, "high", _queue,
               flags=("--queue", "-q")),
    ]  # fmt: skip
    timeout: Annotated[
        SpanLike | None,
        Option(
            Kind.LENGTH,
            "How long an attempt may take, in whole seconds.",
            WHAT,
            None,
            "10m",
            timeout_seconds,
            flags=("--timeout",),
        ),
    ]
    priority: Annotated[
        int,
        Option(Kind.COUNT, "Above 0, its runs go to the front of the queue.", WHAT, 0, 1,
               lambda name, value: _count(name, value) or 0,
               least=-MAX_PRIORITY, most=MAX_PRIORITY),
    ]  # fmt: skip
    executor: Annotated[
        str,
        Option(Kind.CHOICE, "Who executes its runs. rq: workers of RQ; external: workers of any language, over HTTP.",
               WHAT, "rq",
               "external", _executor, choices=EXECUTORS, is_fixed=True),
    ]  # fmt: skip
    overlap: Annotated[
        OverlapPolicy | str,
        Option(Kind.CHOICE, "What a fire does while an earlier run is unfinished.", POLICY, OverlapPolicy.SKIP.value,
               "buffer_one", policy="overlap", choices=tuple(OverlapPolicy), flags=("--overlap",)),
    ]  # fmt: skip
    buffer_limit: Annotated[
        int | None,
        Option(
            Kind.COUNT, "With overlap buffer_all, the most runs that wait.", POLICY, None, 10, policy="buffer_limit"
        ),
    ]
    missed: Annotated[
        MissedPolicy | str,
        Option(Kind.CHOICE, "Which passed occurrences still fire. fire_once: the oldest; skip: the newest, if it "
               "is at most fire_within (60 s) late; all: the newest missed_limit.", POLICY,
               MissedPolicy.FIRE_ONCE.value, "skip", policy="missed", choices=tuple(MissedPolicy)),
    ]  # fmt: skip
    missed_limit: Annotated[
        int,
        Option(Kind.COUNT, "With missed all, the most passed occurrences for which one fire starts runs.", POLICY,
               DEFAULT_MISSED_LIMIT, 10, policy="missed_limit", most=MAX_MISSED_LIMIT),
    ]  # fmt: skip
    fire_within: Annotated[
        SpanLike | None,
        Option(Kind.LENGTH, "An occurrence that is later than this does not fire and counts as missed.", POLICY,
               None, "2h", _length, "fire_within"),
    ]  # fmt: skip
    start_within: Annotated[
        SpanLike | None,
        Option(Kind.LENGTH, "A run that no worker has started within this time after it was queued ends as expired.",
               POLICY, None,
               "30m", _length, "start_within"),
    ]  # fmt: skip
    on_resume: Annotated[
        OnResume | str,
        Option(Kind.CHOICE, "Where a resumed schedule continues. next: at its next occurrence; once: also at "
               "once, if occurrences passed; from_now: one interval after the resume.",
               POLICY, OnResume.NEXT.value, "once", policy="on_resume",
               choices=tuple(OnResume)),
    ]  # fmt: skip
    limit: Annotated[
        str | None,
        Option(Kind.TEXT, "The group that it belongs to: only so many runs of a group run at once, or start "
               "within a time. {labels.NAME} and {namespace} are replaced.", POLICY, None, "tenant:{labels.team}",
               require_limit, "limit"),
    ]  # fmt: skip
    limit_running: Annotated[
        int | None,
        Option(Kind.COUNT, "How many runs of the group may run at once; may be left out if the group exists.", POLICY,
               None, 5, _count, "limit_running", most=MAX_NUMBER),
    ]  # fmt: skip
    limit_rate: Annotated[
        str | None,
        Option(Kind.TEXT, "How many attempts of the group may start within any such time: N/s, /min, /h, /day "
               "or N/ and a length, as in 5/30s; may be left out if the group exists.",
               POLICY, None, "100/min", require_rate,
               "limit_rate"),
    ]  # fmt: skip
    max_runs: Annotated[int | None, Option(Kind.COUNT, "How many runs may start.", POLICY, None, 10, _count)]
    on_max_runs: Annotated[
        str,
        Option(Kind.CHOICE, "Whether the schedule is done or deleted when max_runs is used up.",
               POLICY, "done", "delete", policy="on_max_runs",
               choices=("done", "delete")),
    ]  # fmt: skip
    max_successes: Annotated[
        int | None,
        Option(
            Kind.COUNT, "The schedule is done after this many successful runs.", POLICY, None, 3, policy="max_successes"
        ),
    ]
    environments: Annotated[
        Sequence[str],
        Option(Kind.NAMES, "Only processes whose RQSCHED_ENVIRONMENT is one of these fire it.",
               POLICY, (), ["production"],
               _environments, "environments"),
    ]  # fmt: skip
    retention: Annotated[
        str | int | None,
        Option(Kind.TEXT, "How much history is kept: 90d, 1000 (runs), '90d 1000', or 0 for all.", POLICY, None,
               "90d 1000", policy="retention", is_number_allowed=True),
    ]  # fmt: skip
    retry: Annotated[
        RetryPolicy | Mapping[str, Any] | None,
        Option(Kind.RETRY, "How failed attempts are repeated; fields that are not given come from RQSCHED_RETRY.",
               POLICY, None,
               {"max_retries": 5, "base": "30s"}, policy="retry"),
    ]  # fmt: skip
    targets: Annotated[
        str | Callable[..., Any] | None,
        Option(Kind.TEXT, "The workflow that returns ids; the schedule's workflow is then called for each id, "
               "in a separate job.", TARGETS, None,
               "list_shops", workflow_name, "targets"),
    ]  # fmt: skip
    max_parallel: Annotated[
        int | None,
        Option(Kind.COUNT, "The most targets of a run that execute at once, over all workers.", TARGETS, None, 20,
               _count, "max_parallel", most=MAX_PARALLEL),
    ]  # fmt: skip
    target_timeout: Annotated[
        SpanLike | None,
        Option(Kind.LENGTH, "How long an attempt of a target may take, in whole seconds; default: the timeout of "
               "the run.", TARGETS, None, "1m",
               timeout_seconds, "target_timeout"),
    ]  # fmt: skip
    target_retry: Annotated[
        RetryPolicy | Mapping[str, Any] | None,
        Option(Kind.RETRY, "How failed attempts of a target are repeated; default: not at all.", TARGETS, None,
               {"max_retries": 1}, policy="target_retry"),
    ]  # fmt: skip
    fan_out: Annotated[
        FanOutPolicy | str,
        Option(Kind.CHOICE, "When a run with targets fails. any_failed: if a target failed; all_failed: if "
               "targets failed and none succeeded.", TARGETS, FanOutPolicy.ANY_FAILED.value, "never",
               policy="fan_out", choices=tuple(FanOutPolicy)),
    ]  # fmt: skip
    overlap_until: Annotated[
        OverlapUntil | str,
        Option(Kind.CHOICE, "Until when a run with targets counts as unfinished. finished: until its last target "
               "has ended; dispatched: until its workflow has returned.",
               TARGETS, OverlapUntil.FINISHED.value,
               "dispatched", policy="overlap_until", choices=tuple(OverlapUntil)),
    ]  # fmt: skip
    labels: Annotated[
        Mapping[str, str],
        Option(Kind.LABELS, "Up to 64 short texts to filter by.", METADATA, {}, {"team": "billing"}, require_labels,
               flags=("--label", "-l")),
    ]  # fmt: skip
    memo: Annotated[
        Mapping[str, Any],
        Option(Kind.OBJECT, "JSON values, at most 256 KiB.", METADATA, {}, {"ticket": 7}, require_object),
    ]
    search_attributes: Annotated[
        Mapping[str, Any],
        Option(Kind.ATTRIBUTES, "JSON values to query by.", METADATA, {}, {"tier": 3}, require_object),
    ]
    description: Annotated[
        str | None,
        Option(Kind.TEXT, "What it is for.", METADATA, None, "the nightly report",
               lambda name, value: require_note(value, name), most_characters=4096),
    ]  # fmt: skip
    owner: Annotated[
        str | None,
        Option(Kind.TEXT, "Who owns it; lists filter by it.", METADATA, None, "team-billing",
               lambda name, value: None if value is None else require_id(value, name),
               is_number_allowed=True),
    ]  # fmt: skip
    on_failure: Annotated[
        str | None,
        Option(Kind.TEXT, "The workflow that is called when a run failed, was lost, expired or takes too long, "
               "and when the schedule is overdue.", NOTIFICATIONS, None, "alert_team"),
    ]  # fmt: skip
    on_recovery: Annotated[
        str | None,
        Option(
            Kind.TEXT,
            "The workflow that is called at the first success after a call of on_failure.",
            NOTIFICATIONS,
            None,
            "alert_team",
        ),
    ]
    expect_success_within: Annotated[
        SpanLike | None,
        Option(
            Kind.LENGTH,
            "If no run succeeds for this long, the schedule is overdue.",
            NOTIFICATIONS,
            None,
            "26h",
            _length,
        ),
    ]
    expect_duration: Annotated[
        SpanLike | None,
        Option(
            Kind.LENGTH, "If a run takes longer than this, a notification is sent.", NOTIFICATIONS, None, "20m", _length
        ),
    ]
    notifications: Annotated[
        Mapping[str, Any] | None,
        Option(Kind.NOTIFICATIONS, "Other receivers of notifications: webhook, events, heartbeat, sentry.",
               NOTIFICATIONS, None,
               {"webhook": "https://hooks.example.com/rqsched"}),
    ]  # fmt: skip


class Options(CommonOptions, total=False):
    """The options of a schedule, besides its id, workflow and spec. Each has a default."""

    connection: Annotated[
        str | None, Option(Kind.TEXT, "The named Redis of its runs (RQSCHED_CONNECTIONS).", WHAT, None, "eu", _queue)
    ]


class Part(NamedTuple):
    """One field of an option that is an object."""

    kind: Kind
    """The type of its value."""
    help: str
    """Its effect."""
    choices: tuple[str, ...] = ()
    """The values of a choice."""
    flags: tuple[str, ...] = ()
    """The flags of the commands. If it is empty, the commands take `--set NAME.FIELD=VALUE`."""


def _parts_of_retries(default: int) -> dict[str, Part]:
    return {
        "max_retries": Part(Kind.COUNT, f"Attempts after the first; default {default}."),
        "base": Part(Kind.LENGTH, "The first delay; default the interval, 60 s for cron."),
        "factor": Part(Kind.NUMBER, "How much each delay grows; default 2."),
        "cap": Part(Kind.LENGTH, "The longest delay; default 10 times the base."),
        "jitter": Part(Kind.LENGTH, "The longest random addition to a delay."),
        "retry_on": Part(Kind.NAMES, "The errors that are tried again; default every one."),
        "give_up_on": Part(Kind.NAMES, "The errors that are never tried again."),
    }


PARTS: Mapping[str, Mapping[str, Part]] = {
    "retry": {
        **_parts_of_retries(3),
        "max_retries": Part(Kind.COUNT, "Attempts after the first; default 3.", flags=("--max-retries",)),
        "then": Part(
            Kind.CHOICE, "Whether the schedule is dead after a failed run, or continues.", tuple(FailurePolicy)
        ),
        "max_consecutive_failures": Part(Kind.COUNT, "The schedule is dead after this many failed runs in a row."),
    },
    "target_retry": _parts_of_retries(0),
    "notifications": {
        "webhook": Part(Kind.TEXT, "The URL to which events are posted, signed."),
        "events": Part(
            Kind.NAMES, "The audit events that are posted to the webhook; default: failures and recoveries."
        ),
        "heartbeat": Part(Kind.TEXT, "The URL that is pinged at the start and the end of each run."),
        "sentry": Part(Kind.TEXT, "The slug of the monitor in Sentry."),
    },
}
"""The fields of the options that are objects, by the name of the option."""

OPTIONS: Mapping[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}
"""Every option by name."""
