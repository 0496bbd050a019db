"""Every error a caller can meet, in one tree.

RqschedError
├── InvalidInputError (also a ValueError)   refused before anything was written
│   ├── InvalidSpecError
│   │   ├── InvalidCronError
│   │   ├── InvalidTimezoneError
│   │   └── InvalidDurationError
│   ├── InvalidIdError
│   ├── InvalidPayloadError
│   ├── InvalidPolicyError
│   ├── InvalidLimitError
│   ├── TooMuchWorkError
│   ├── InvalidTypeError (also a TypeError)
│   ├── UnknownCalendarError
│   └── UnknownWorkflowError
├── NotFoundError (also a LookupError)
│   ├── NamespaceNotFoundError
│   ├── ScheduleNotFoundError
│   ├── RunNotFoundError
│   ├── BackfillNotFoundError
│   └── CalendarNotFoundError
├── ConflictError
│   ├── ScheduleExistsError
│   ├── ScheduleStateError
│   ├── RunStateError
│   ├── VersionConflictError
│   ├── CalendarInUseError
│   ├── CalendarChangedError
│   ├── CalendarBusyError
│   ├── IdempotencyConflictError
│   ├── FrozenError
│   ├── NewerReleaseError
│   └── TransactionConflictError
├── QuotaExceededError
├── WorkCancelledError
├── NotExecutedError
├── ConfigError
│   └── WrongDatabaseError
├── SchemaError
├── DatabaseLimitError
└── BackendUnavailableError
    ├── DatabaseUnavailableError
    │   ├── DatabaseReadOnlyError
    │   └── DatabasePrivilegeError
    └── RedisUnavailableError

`RunCancelled` stands apart: it is raised inside a workflow, by `run.checkpoint()`, and is
not an error. It derives from BaseException, so that a workflow's `except Exception` does not swallow it.

An error takes data, keeps it as attributes and writes its own message, which says what to do. The class of an error has
its `code`, `http_status` and `exit_code`, which subclasses inherit. The docstring of a class states the cause of its
errors, and `remedy` states the remedy. The reference and its test read both.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def install(extra: str) -> str:
    """Return the command that installs an extra from where this rqsched came: a package index or a checkout."""
    from importlib import metadata  # noqa: PLC0415 - sixty milliseconds that only this message needs

    if metadata.distribution("rqsched").read_text("direct_url.json") is None:
        return f"`pip install 'rqsched[{extra}]'`"
    return f"`pip install '.[{extra}]'` in a checkout of rqsched"


Words = Callable[[str], str]
_words: list[Words] = []


def speak_with(words: Words) -> None:
    """Let messages name settings and commands as the application's users know them. A new function replaces the old
    one.

    `words` takes a text of ours and returns it in the application's words. For example, in a Django project it replaces
    RQSCHED_REDIS_URL by the entry in the setting RQSCHED.
    """
    _words[:] = [words]


def in_words(text: str) -> str:
    """Return a text of ours in the words of the application, see `speak_with`."""
    for words in _words:
        text = words(text)
    return text


class RqschedError(Exception):
    """The root: `except RqschedError` catches everything rqsched raises on purpose."""

    code = "error"
    """A stable word for logs and JSON answers."""
    http_status = 500
    """The status of an HTTP response; OJS and Durable Workflow have some other statuses."""
    exit_code = 1
    """The exit code of a command."""
    remedy = "Do what the message says."
    """The remedy, if the message has no better one."""

    def __str__(self) -> str:
        """Return the message, in the words of this process's application."""
        return in_words(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the message and the attributes when pickled: RQ and process pools send exceptions between processes."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RqschedError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> RqschedError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidInputError(RqschedError, ValueError):
    """An argument is refused; nothing was written.

    `field` names the offending parameter, `reason` says what is wrong and what to write instead.
    """

    code = "invalid_input"
    http_status = 422
    exit_code = 2
    remedy = "Correct the field that the message begins with; it says what to write."

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class InvalidSpecError(InvalidInputError):
    """A spec that cannot be evaluated. `field` names the part that is wrong."""

    code = "invalid_spec"
    remedy = "Correct that part: the message says what to write, docs/times.md what a spec is."


class UpstreamError(InvalidSpecError):
    """A schedule comes after a missing schedule, or after itself."""

    code = "invalid_upstream"
    remedy = "Create the schedule that it comes after first; `rqsched list` shows those that there are."


class InvalidCronError(InvalidSpecError):
    """A cron expression outside the dialect, or one that never fires."""

    code = "invalid_cron"
    remedy = "Correct it; docs/times.md has the dialect."


class InvalidTimezoneError(InvalidSpecError):
    """A timezone that is not a canonical IANA area name."""

    code = "invalid_timezone"
    remedy = "Write one such as Europe/Berlin, or UTC."


class InvalidDurationError(InvalidSpecError):
    """A duration that is malformed, zero, signed, too short or calendar-dependent."""

    code = "invalid_duration"
    remedy = "Write 90s, 1h30m or PT30M; for months and years, a cron expression."


class InvalidIdError(InvalidInputError):
    """A schedule id, namespace or queue name outside its alphabet or length."""

    code = "invalid_id"
    remedy = "Choose another; the message has the alphabet."


class InvalidPayloadError(InvalidInputError):
    """Arguments, memo, labels or notes that are not JSON-native or exceed their size limit."""

    code = "invalid_payload"
    remedy = "Pass an id and have the workflow read the rest (docs/concepts.md)."


class InvalidPolicyError(InvalidInputError):
    """A policy that is unknown, or two options that contradict each other."""

    code = "invalid_policy"
    remedy = "Choose one that the message lists, or drop one of the two that it names."


class InvalidLimitError(InvalidInputError):
    """A page size, cursor or range outside its bounds."""

    code = "invalid_limit"
    remedy = "Ask for less at once, or pass the cursor of the page before."


class TooMuchWorkError(InvalidInputError):
    """Computing when a schedule fires takes too many steps; `limit` is the most that a request may take."""

    code = "too_much_work"
    remedy = "Exclude less, join windows that touch, give fewer members, or ask about a shorter range."

    def __init__(self, field: str, limit: int) -> None:
        self.limit = limit
        told = f"needs more than {limit} steps to find its times; exclude less, give fewer members or a shorter range"
        super().__init__(field, told)


class InvalidTypeError(InvalidInputError, TypeError):
    """An argument that does not exist, or has an impossible type."""

    code = "invalid_type"
    remedy = "Correct its name, for which the message has the nearest, or its type."


class UnknownWorkflowError(InvalidInputError):
    """No process registered a workflow of this name, and it is not an importable dotted path."""

    code = "unknown_workflow"
    remedy = (
        "Decorate the function with @workflow in a module of RQSCHED_IMPORTS and start a worker that imports it; or "
        "correct the name."
    )

    def __init__(self, workflow: str, reason: str | None = None) -> None:
        self.workflow = workflow
        super().__init__(
            "workflow",
            reason
            or f"no workflow named {workflow!r} is registered. Decorate it with @workflow({workflow!r}) in a module "
            "listed in RQSCHED_IMPORTS and start a worker, or give a dotted path such as 'package.module.function'.",
        )


class UnknownCalendarError(InvalidInputError):
    """A schedule names a calendar that does not exist, in its namespace or shared by all."""

    code = "unknown_calendar"
    remedy = "Create the calendar first, or correct its name: `rqsched calendar list` shows those that there are."

    def __init__(self, calendar: str, namespace: str, known: Iterable[str] = ()) -> None:
        self.calendar = calendar
        self.namespace = namespace
        told = f"{calendar!r} is no date, range or weekly window, and no calendar of namespace {namespace!r}"
        super().__init__("exclude", f"{told}{did_you_mean(calendar, known) or '; create that first, or correct it'}")


class NotFoundError(RqschedError, LookupError):
    """Nothing of this identity exists (any more)."""

    code = "not_found"
    http_status = 404
    exit_code = 3
    remedy = "List what there is; it may be in another namespace."


class NamespaceNotFoundError(NotFoundError):
    """The namespace does not exist for the caller, whether or not it does for others."""

    code = "namespace_not_found"
    remedy = "Name one that the token may use, or use a token of that namespace."

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"there is no namespace {namespace!r} for you; name one that your token may use.")


class ScheduleNotFoundError(NotFoundError):
    """No schedule of this id in this namespace; it may have been deleted."""

    code = "schedule_not_found"
    remedy = "`rqsched list` shows those that there are, `rqsched history ID` what became of a deleted one."

    def __init__(self, schedule_id: str, namespace: str = "default") -> None:
        self.schedule_id = schedule_id
        self.namespace = namespace
        super().__init__(
            f"no schedule {schedule_id!r} in namespace {namespace!r}; `rqsched list` shows those that exist."
        )


class RunNotFoundError(NotFoundError):
    """No run of this uid or instance id; retention may have deleted it."""

    code = "run_not_found"
    remedy = "`rqsched runs ID` shows those of a schedule."

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(
            f"no run {run!r}; `rqsched runs SCHEDULE_ID` shows those that exist. A number needs --schedule, too."
        )


class BackfillNotFoundError(NotFoundError):
    """No backfill of this uid."""

    code = "backfill_not_found"
    remedy = "scheduler.backfills.list() and GET /api/v1/backfills/ list those that there are."

    def __init__(self, backfill: str) -> None:
        self.backfill = backfill
        super().__init__(
            f"no backfill {backfill!r}; scheduler.backfills.list() and GET /api/v1/backfills/ list those that exist."
        )


class CalendarNotFoundError(NotFoundError):
    """No calendar of this name, in this namespace or shared by all."""

    code = "calendar_not_found"
    remedy = "`rqsched calendar list` shows those that there are."

    def __init__(self, calendar: str, namespace: str | None) -> None:
        self.calendar = calendar
        self.namespace = namespace
        where = "shared by all namespaces" if namespace is None else f"in namespace {namespace!r}"
        super().__init__(f"no calendar {calendar!r} {where}; `rqsched calendar list` shows those that exist.")


class LimitNotFoundError(NotFoundError):
    """There is no such group of limited runs in this namespace."""

    code = "limit_not_found"
    remedy = "`rqsched limits list` shows those that there are; give a schedule that limit to make one."

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        super().__init__(f"no group {name!r} in namespace {namespace!r}. {self.remedy}")


class ConflictError(RqschedError):
    """The request is well-formed but the state of the schedule or run forbids it; nothing was written."""

    code = "conflict"
    http_status = 409
    exit_code = 4
    remedy = "Read the state again, and decide whether the request is still wanted."


class ScheduleExistsError(ConflictError):
    """`create` is strict: the id is taken in this namespace."""

    code = "schedule_already_exists"
    remedy = "Use upsert to change it in place, or delete it first."

    def __init__(self, schedule_id: str, namespace: str = "default") -> None:
        self.schedule_id = schedule_id
        self.namespace = namespace
        super().__init__(
            f"schedule {schedule_id!r} already exists in namespace {namespace!r}; "
            "use upsert to change it, or delete it first."
        )


class ScheduleStateError(ConflictError):
    """The operation does not apply to a schedule of this status."""

    code = "invalid_state"
    remedy = "Resume a paused schedule, restart a done or dead one, create a deleted one again."

    def __init__(self, schedule_id: str, status: str, operation: str, hint: str = "") -> None:
        self.schedule_id = schedule_id
        self.status = status
        self.operation = operation
        self.hint = hint
        super().__init__(f"cannot {operation} schedule {schedule_id!r}: it is {status}. {hint or self.remedy}")


class RunStateError(ConflictError):
    """The operation does not apply to a run of this status."""

    code = "invalid_run_state"
    remedy = "Wait until it has ended, or choose another: `rqsched runs ID` shows them with their status."

    def __init__(self, run: str, status: str, operation: str, hint: str = "") -> None:
        self.run = run
        self.status = status
        self.operation = operation
        self.hint = hint
        super().__init__(f"cannot {operation} run {run!r}: it is {status}. {hint or self.remedy}")


class VersionConflictError(ConflictError):
    """The schedule changed since the caller read it (optimistic concurrency)."""

    code = "version_conflict"
    http_status = 412
    remedy = "Read it again and repeat the change."

    def __init__(self, schedule_id: str, expected: int, actual: int) -> None:
        self.schedule_id = schedule_id
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"schedule {schedule_id!r} is at version {actual}, not {expected}; read it again and repeat the change."
        )


class CalendarInUseError(ConflictError):
    """A calendar that schedules name is not deleted: they would fire on its excluded days."""

    code = "calendar_in_use"
    remedy = "Take it out of the `exclude` of those schedules first, or replace what it holds."

    def __init__(self, calendar: str, schedules: Iterable[str], more: int = 0) -> None:
        self.calendar = calendar
        self.schedules = [*schedules]
        others = f" and {more} more" if more else ""
        named = f"calendar {calendar!r} is named by {', '.join(self.schedules)}{others}"
        super().__init__(f"{named}; take it out of their `exclude` first, or replace what it holds.")


class CalendarChangedError(ConflictError):
    """The calendar changed since the caller read it, or another calendar has that name."""

    code = "calendar_changed"
    http_status = 412
    remedy = "Read it again and repeat the change."

    def __init__(self, calendar: str, reason: str) -> None:
        self.calendar = calendar
        super().__init__(f"calendar {calendar!r} {reason}; read it again and repeat the change.")


class CalendarBusyError(ConflictError):
    """Calendars changed again and again while schedules were planned with them; nothing was written."""

    code = "calendar_busy"
    remedy = "Try again once nobody changes the calendars."

    def __init__(self, calendars: Sequence[str], tries: int) -> None:
        self.calendars = [*calendars]
        named = ", ".join(map(repr, self.calendars))
        super().__init__(f"{named} changed {tries} times while it was planned with; nothing was written, try again.")


class IdempotencyConflictError(ConflictError):
    """An idempotency key was used before with another request."""

    code = "idempotency_conflict"
    remedy = "Use a new key for a new request."

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"idempotency key {key!r} was used with a different request; choose a new key.")


class TransactionConflictError(ConflictError):
    """Another transaction was first, while this operation ran in the caller's own transaction.

    The operation is not repeated inside that transaction, because the caller's earlier reads may be outdated.
    """

    code = "transaction_conflict"
    remedy = "Roll back and repeat the whole transaction."

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"another transaction was first ({reason}); roll yours back and repeat it from its beginning.")


class LimitConflictError(ConflictError):
    """A schedule gives its group another number or rate than the group has, or neither although it is the first."""

    code = "limit_conflict"
    remedy = (
        "Leave limit_running and limit_rate out to join the group, or change it: "
        "`rqsched limits set NAME --number N --rate N/min`."
    )

    def __init__(self, schedule_id: str, namespace: str, name: str, *, bounds: str = "", given: str = "") -> None:
        self.schedule_id = schedule_id
        self.namespace = namespace
        self.name = name
        self.bounds = bounds
        self.given = given
        if not bounds:
            told = f"there is no group {name!r} in namespace {namespace!r} yet; give limit_running, limit_rate or both."
        else:
            told = f"of group {name!r} in namespace {namespace!r} {bounds}; given is: {given}. {self.remedy}"
        super().__init__(f"schedule {schedule_id!r}: {told}")


class FrozenError(ConflictError):
    """Everything, or the namespace, is frozen, so nothing was started."""

    code = "frozen"
    remedy = (
        "Wait for the thaw, or end the freeze with `rqsched thaw NAMESPACE` or `rqsched thaw --everything`; then "
        "repeat the call."
    )

    def __init__(self, namespace: str | None, freeze: str) -> None:
        """`namespace` is None if everything is frozen."""
        self.namespace = namespace
        what = "everything is" if namespace is None else f"namespace {namespace!r} is"
        ends = "nothing begins until `rqsched thaw --everything`"
        ends = ends if namespace is None else f"nothing begins there until `rqsched thaw {namespace}`"
        super().__init__(f"{what} {freeze}: {ends}; repeat it then.")


class NewerReleaseError(ConflictError):
    """The timing of a schedule has parts that only a newer release of rqsched knows; nothing was written.

    This process can show the schedule, and leaves its fires to processes of that release.
    """

    code = "newer_release"
    remedy = "Ask a process of the newer release, or replace this one by it."

    def __init__(self, unknown: str) -> None:
        self.unknown = unknown
        super().__init__(
            f"its timing is of a newer release of rqsched ({unknown}), and only those fire and change it. {self.remedy}"
        )


class QuotaExceededError(RqschedError):
    """The namespace would hold more than its quota allows; nothing was written, and a repetition is refused too."""

    code = "quota_exceeded"
    http_status = 403
    exit_code = 4
    remedy = "Delete what is not needed, or raise the quota (RQSCHED_QUOTAS)."

    def __init__(self, namespace: str, resource: str, *, limit: int, used: int, wanted: int) -> None:
        self.namespace = namespace
        self.resource = resource
        self.limit = limit
        self.used = used
        self.wanted = wanted
        what = "schedules" if resource == "schedules" else "bytes of declarations"
        super().__init__(
            f"namespace {namespace!r} holds {used} of at most {limit} {what}, and {wanted} more were asked for. Delete "
            "what is not needed, or have the quota raised (RQSCHED_QUOTAS)."
        )


class WorkCancelledError(RqschedError):
    """The client disconnected, so the computation of its answer was stopped."""

    code = "cancelled"
    http_status = 503
    remedy = "Ask again, and keep the connection open until the answer is there."

    def __init__(self) -> None:
        super().__init__("the client disconnected before the answer was there; ask again and wait for it.")


class NotExecutedError(RqschedError, TypeError):
    """A workflow returned unexecuted code: a generator, an awaitable, a `map` or a `filter`."""

    code = "not_executed"
    remedy = "Execute the work in the workflow, and return a value: take `yield` out, await it, or make a list of it."

    def __init__(self, kind: str, advice: str) -> None:
        self.kind = kind
        super().__init__(f"the workflow returned {kind}, whose work has not been done: {advice}.")


class ConfigError(RqschedError):
    """A setting is missing, malformed or contradicts another one."""

    code = "config_error"
    exit_code = 2
    remedy = "Set the variable that the message names to what it says."


class WrongDatabaseError(ConfigError):
    """The database is not the one that a Redis, a job or the caller's own connection belongs to."""

    code = "wrong_database"
    remedy = (
        "Correct the URL that is wrong; of two databases on one Redis, give one a Redis database or control queue "
        "of its own."
    )


class SchemaError(RqschedError):
    """The database's tables do not match this version of rqsched."""

    code = "schema_error"
    http_status = 503
    exit_code = 5
    remedy = "Run `rqsched db upgrade`, in Django `manage.py migrate`."


class DatabaseLimitError(RqschedError):
    """The database stopped a statement that took too long or too much, and would stop it again; nothing was written."""

    code = "database_limit"
    http_status = 503
    exit_code = 5
    remedy = "Ask for less at once (a page, a shorter range), look for what holds the database up, or raise its limit."
    reason = ""
    """The message of the database; empty in an HTTP client, because the server hides it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the database stopped a statement ({reason}). Ask for less at once, or look for what holds the database "
            "up; rqsched's limits of its sessions are set by RQSCHED_DATABASE_URL "
            "(?options=-c%20statement_timeout=30s)."
        )


class BackendUnavailableError(RqschedError):
    """SQL or Redis did not answer within the retries, or Redis refused."""

    code = "backend_unavailable"
    http_status = 503
    exit_code = 5
    remedy = "Look whether both run and the URLs are right (`rqsched doctor`), and repeat the call."


class DatabaseUnavailableError(BackendUnavailableError):
    """The SQL database did not answer; nothing is known to be written."""

    code = "database_unavailable"
    remedy = "Look whether it runs and RQSCHED_DATABASE_URL is right, and repeat the call."


class DatabaseReadOnlyError(DatabaseUnavailableError):
    """The SQL database takes no writes: it is a standby, a replica, or read-only. Nothing was written."""

    code = "database_read_only"
    remedy = (
        "Send the call to a process whose RQSCHED_DATABASE_URL names the primary, or repeat it after the promotion."
    )


class DatabaseInheritedError(DatabaseUnavailableError):
    """The SQLite file was open when this process was forked, so its commits could be lost. Nothing was written."""

    code = "database_inherited"
    remedy = (
        "Start this process again. Do not fork inside a transaction, or while one lasts longer than 20 s. Under uWSGI, "
        "set lazy-apps = true, so that each process loads the application after the fork."
    )

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"the SQLite file {path} was open when this process was forked, so commits could be lost. {self.remedy}"
        )


class DatabasePrivilegeError(DatabaseUnavailableError):
    """The user of the SQL database lacks a privilege that rqsched needs. Nothing was written."""

    code = "database_privilege"
    remedy = "Run the GRANT that the message names, as the owner of the tables; `rqsched doctor` names all that lack."

    def __init__(self, missing: Iterable[str], reason: str, *, user: str = "its user") -> None:
        self.missing = [*missing]
        self.reason = reason
        grants = " ".join(f"GRANT {one} TO {user};" for one in self.missing)
        told = f"run as the owner of the tables: {grants}" if grants else f"{reason}. {self.remedy}"
        super().__init__(f"the user of the database lacks a privilege: {told}")


class RedisUnavailableError(BackendUnavailableError):
    """Redis did not answer, or refused; changes in SQL are durable, and Redis follows when it takes them."""

    code = "redis_unavailable"
    remedy = "`rqsched doctor` says what is wrong with it; nothing needs to be repeated."


class RunCancelled(BaseException):  # a signal to the workflow, not an error
    """Raised by `current_run().checkpoint()` once the run was cancelled; catch it to clean up, then re-raise."""


_TRACEBACK = "Traceback (most recent call last):"


def error_line(text: str | None) -> str:
    """Return the line of an error with the exception's type and message.

    Texts of rqsched begin with this line. A text of an external worker may be a traceback, which ends with this line.
    """
    told = (text or "").strip()
    if not told.startswith(_TRACEBACK):
        return told.partition("\n")[0].strip()
    after = told.rpartition(_TRACEBACK)[2].splitlines()
    return next((line.strip() for line in after if line.strip() and not line[0].isspace()), "")


_MOST_COMPARED = 100
"""How many characters of a name are compared with known names. A request may hold a name of a megabyte."""


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint for a message about an unknown name: the nearest known name, or nothing.

    The nearest name is spelt like it, or is the only one that ends with it. `prefix` is put before the name.

    >>> did_you_mean("timezon", ["timezone", "queue"])
    '; did you mean timezone?'
    >>> did_you_mean("id", ["schedule_id", "queue"])
    '; did you mean schedule_id?'
    """
    names, name = list(known), name[:_MOST_COMPARED]
    longer = [one for one in names if one.endswith(f"_{name}")]
    nearest = difflib.get_close_matches(name, names, 1) or (longer if len(longer) == 1 else [])
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
