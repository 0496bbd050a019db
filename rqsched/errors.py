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
│   ├── InvalidTypeError (also a TypeError)
│   └── UnknownWorkflowError
├── NotFoundError (also a LookupError)
│   ├── NamespaceNotFoundError
│   ├── ScheduleNotFoundError
│   ├── RunNotFoundError
│   └── BackfillNotFoundError
├── ConflictError
│   ├── ScheduleExistsError
│   ├── ScheduleStateError
│   ├── RunStateError
│   ├── VersionConflictError
│   ├── IdempotencyConflictError
│   └── TransactionConflictError
├── QuotaExceededError
├── ConfigError
│   └── WrongDatabaseError
├── SchemaError
├── DatabaseLimitError
└── BackendUnavailableError
    ├── DatabaseUnavailableError
    │   └── DatabaseReadOnlyError
    └── RedisUnavailableError

`RunCancelled` stands apart: it is raised inside a workflow, by `run.checkpoint()`, and is
not an error. It derives from BaseException, so that a workflow's `except Exception` does not swallow it.

An error takes data, keeps it as attributes and writes its own message, which says what to do. Its class says what it is
on each surface: `code`, `http_status` and `exit_code`, which its subclasses inherit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class RqschedError(Exception):
    """The root: `except RqschedError` catches everything rqsched raises on purpose."""

    code = "error"
    """A stable word for logs and JSON answers."""
    http_status = 500
    """The status of an HTTP response; OJS and Durable Workflow have a few of their own."""
    exit_code = 1
    """What a command ends with."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling with its message and attributes: RQ and process pools send exceptions between processes."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RqschedError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> RqschedError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidInputError(RqschedError, ValueError):
    """Something a caller passed is refused; nothing was written.

    `field` names the offending parameter, `reason` says what is wrong and what to write instead.
    """

    code = "invalid_input"
    http_status = 422
    exit_code = 2

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class InvalidSpecError(InvalidInputError):
    """A spec that cannot be evaluated. `field` names the part that is wrong, and the message what to write."""

    code = "invalid_spec"


class InvalidCronError(InvalidSpecError):
    """A cron expression outside the dialect, or one that never fires. Correct it; docs/cron.md has the dialect."""

    code = "invalid_cron"


class InvalidTimezoneError(InvalidSpecError):
    """A timezone that is not a canonical IANA area name. Write one such as `Europe/Berlin`, or `UTC`."""

    code = "invalid_timezone"


class InvalidDurationError(InvalidSpecError):
    """A duration that is malformed, zero, signed, too short or calendar-dependent. Write `90s`, `1h30m` or `PT30M`."""

    code = "invalid_duration"


class InvalidIdError(InvalidInputError):
    """A schedule id, namespace or queue name outside its alphabet or length, which the message has. Choose another."""

    code = "invalid_id"


class InvalidPayloadError(InvalidInputError):
    """Arguments, memo, labels or notes that are not JSON-native or exceed their size limit.

    Pass an id and have the workflow read the rest (docs/arguments.md).
    """

    code = "invalid_payload"


class InvalidPolicyError(InvalidInputError):
    """A policy that is unknown, or two options that contradict each other. The message names both and what to drop."""

    code = "invalid_policy"


class InvalidLimitError(InvalidInputError):
    """A page size, cursor or range outside its bounds. Ask for less at once, or pass the cursor of the page before."""

    code = "invalid_limit"


class InvalidTypeError(InvalidInputError, TypeError):
    """An argument that does not exist, or is not even of a type that could be meant; the message names the nearest."""

    code = "invalid_type"


class UnknownWorkflowError(InvalidInputError):
    """No process registered a workflow of this name, and it is not an importable dotted path.

    Decorate it with `@workflow` in a module of RQSCHED_IMPORTS and start a worker that has it; correct a misspelt name.
    """

    code = "unknown_workflow"

    def __init__(self, workflow: str, reason: str | None = None) -> None:
        self.workflow = workflow
        super().__init__(
            "workflow",
            reason
            or f"no workflow named {workflow!r} is registered. Decorate it with @workflow({workflow!r}) in a module "
            "listed in RQSCHED_IMPORTS and start a worker, or give a dotted path such as 'package.module.function'.",
        )


class NotFoundError(RqschedError, LookupError):
    """Nothing of this identity exists (any more). List what there is; it may be in another namespace."""

    code = "not_found"
    http_status = 404
    exit_code = 3


class NamespaceNotFoundError(NotFoundError):
    """The namespace does not exist for the caller, whether or not it does for others. Use a token that may see it."""

    code = "namespace_not_found"

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        super().__init__(f"there is no namespace {namespace!r}.")


class ScheduleNotFoundError(NotFoundError):
    """No schedule of this id in this namespace; it may have been deleted. `rqsched list` shows those that there are."""

    code = "schedule_not_found"

    def __init__(self, schedule_id: str, namespace: str = "default") -> None:
        self.schedule_id = schedule_id
        self.namespace = namespace
        super().__init__(
            f"no schedule {schedule_id!r} in namespace {namespace!r}; `rqsched list` shows those that exist."
        )


class RunNotFoundError(NotFoundError):
    """No run of this uid or instance id. `rqsched runs ID` shows those of a schedule; retention may have deleted it."""

    code = "run_not_found"

    def __init__(self, run: str) -> None:
        self.run = run
        super().__init__(f"no run {run!r}; `rqsched runs SCHEDULE_ID` shows those that exist.")


class BackfillNotFoundError(NotFoundError):
    """No backfill of this uid. `Scheduler.backfills()` lists those that there are."""

    code = "backfill_not_found"

    def __init__(self, backfill: str) -> None:
        self.backfill = backfill
        super().__init__(f"no backfill {backfill!r}.")


class ConflictError(RqschedError):
    """The request is well-formed but the state of the schedule or run forbids it; nothing was written.

    Read the state again, and decide whether the request is still wanted.
    """

    code = "conflict"
    http_status = 409
    exit_code = 4


class ScheduleExistsError(ConflictError):
    """`create` is strict: the id is taken in this namespace. Use `upsert` to change it in place."""

    code = "schedule_already_exists"

    def __init__(self, schedule_id: str, namespace: str = "default") -> None:
        self.schedule_id = schedule_id
        self.namespace = namespace
        super().__init__(
            f"schedule {schedule_id!r} already exists in namespace {namespace!r}; "
            "use upsert to change it, or delete it first."
        )


class ScheduleStateError(ConflictError):
    """The operation does not apply to a schedule of this status. The message says which does, such as restart."""

    code = "invalid_state"

    def __init__(self, schedule_id: str, status: str, operation: str, hint: str = "") -> None:
        self.schedule_id = schedule_id
        self.status = status
        self.operation = operation
        self.hint = hint
        super().__init__(f"cannot {operation} schedule {schedule_id!r}: it is {status}.{' ' + hint if hint else ''}")


class RunStateError(ConflictError):
    """The operation does not apply to a run of this status. The message says which does."""

    code = "invalid_run_state"

    def __init__(self, run: str, status: str, operation: str, hint: str = "") -> None:
        self.run = run
        self.status = status
        self.operation = operation
        self.hint = hint
        super().__init__(f"cannot {operation} run {run!r}: it is {status}.{' ' + hint if hint else ''}")


class VersionConflictError(ConflictError):
    """The schedule changed since the caller read it (optimistic concurrency). Read it again and repeat the change."""

    code = "version_conflict"
    http_status = 412

    def __init__(self, schedule_id: str, expected: int, actual: int) -> None:
        self.schedule_id = schedule_id
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"schedule {schedule_id!r} is at version {actual}, not {expected}; read it again and repeat the change."
        )


class IdempotencyConflictError(ConflictError):
    """An idempotency key was used before with another request. Use a new key for a new request."""

    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"idempotency key {key!r} was used with a different request; choose a new key.")


class TransactionConflictError(ConflictError):
    """In the caller's own transaction, another one was first: roll back and repeat the whole transaction.

    Nothing is repeated inside of it, for what the caller read before may be what has changed.
    """

    code = "transaction_conflict"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"another transaction was first ({reason}); roll yours back and repeat it from its beginning.")


class QuotaExceededError(RqschedError):
    """The namespace would hold more than its quota allows; nothing was written, and a repetition is refused too.

    Delete what is not needed, or raise the quota (RQSCHED_QUOTAS).
    """

    code = "quota_exceeded"
    http_status = 403
    exit_code = 4

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


class ConfigError(RqschedError):
    """A setting is missing, malformed or contradicts another one. The message names the variable and what to write."""

    code = "config_error"
    exit_code = 2


class WrongDatabaseError(ConfigError):
    """The database is not the one that a Redis, a job or the caller's own connection belongs to.

    Correct the URL that is wrong; of two databases on one Redis, give one a Redis database or control queue of its own.
    """

    code = "wrong_database"


class SchemaError(RqschedError):
    """The database's tables are not those of this version of rqsched. Run `rqsched db upgrade`, in Django `migrate`."""

    code = "schema_error"
    http_status = 503
    exit_code = 5


class DatabaseLimitError(RqschedError):
    """The database stopped a statement that took too long or too much; nothing was written, and it would stop it again.

    Ask for less at once (a page, a shorter range), look for what holds the database up, or raise its limit.
    """

    code = "database_limit"
    http_status = 503
    exit_code = 5

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the database stopped a statement ({reason}). Ask for less at once, or look for what holds the database "
            "up; rqsched's limits of its sessions are set by RQSCHED_DATABASE_URL "
            "(?options=-c%20statement_timeout=30s)."
        )


class BackendUnavailableError(RqschedError):
    """SQL or Redis did not answer within the retries; repeat the call later."""

    code = "backend_unavailable"
    http_status = 503
    exit_code = 5


class DatabaseUnavailableError(BackendUnavailableError):
    """The SQL database did not answer; nothing is known to be written. Look whether it runs, and repeat the call."""

    code = "database_unavailable"


class DatabaseReadOnlyError(DatabaseUnavailableError):
    """The SQL database takes no writes: it is a standby, a replica, or read-only. Nothing was written.

    Send the call to a process whose RQSCHED_DATABASE_URL names the primary, or repeat it after the promotion.
    """

    code = "database_read_only"


class RedisUnavailableError(BackendUnavailableError):
    """Redis did not answer; what SQL holds is durable and follows when Redis is back. Nothing needs to be repeated."""

    code = "redis_unavailable"


class RunCancelled(BaseException):  # a signal to the workflow, not an error
    """Raised by `current_run().checkpoint()` once the run was cancelled; catch it to clean up, then re-raise."""


_TRACEBACK = "Traceback (most recent call last):"


def error_line(text: str | None) -> str:
    """Return the line of an error that says what went wrong: the exception's own, type and message.

    Our texts begin with it. Those of external workers may be a traceback, which ends with it and what belongs to it.
    """
    told = (text or "").strip()
    if not told.startswith(_TRACEBACK):
        return told.partition("\n")[0].strip()
    after = told.rpartition(_TRACEBACK)[2].splitlines()
    return next((line.strip() for line in after if line.strip() and not line[0].isspace()), "")


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return what to add to a message about an unknown name: the nearest known one, or nothing.

    That is one that is spelt like it, or the only one that ends with it. `prefix` is what stands before every name.

    >>> did_you_mean("timezon", ["timezone", "queue"])
    '; did you mean timezone?'
    >>> did_you_mean("id", ["schedule_id", "queue"])
    '; did you mean schedule_id?'
    """
    names = list(known)
    longer = [one for one in names if one.endswith(f"_{name}")]
    nearest = difflib.get_close_matches(name, names, 1) or (longer if len(longer) == 1 else [])
    return f"; did you mean {prefix}{nearest[0]}?" if nearest else ""
