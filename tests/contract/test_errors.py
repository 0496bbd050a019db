"""An error says what is wrong and what to do about it: those that write their message, and each text that is raised."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from rqsched import errors
from rqsched.errors import RqschedError
from rqsched.http import errors as http_errors
from tests.contract.sources import modules

OWN: dict[RqschedError, str] = {
    errors.UnknownWorkflowError("a"): "Decorate it with @workflow('a')",
    errors.NamespaceNotFoundError("a"): "name one that your token may use",
    errors.ScheduleNotFoundError("a"): "`rqsched list` shows",
    errors.RunNotFoundError("a"): "`rqsched runs SCHEDULE_ID` shows",
    errors.BackfillNotFoundError("a"): "GET /api/v1/backfills/ list",
    errors.LimitNotFoundError("a", "b"): "`rqsched limits list` shows",
    errors.LimitConflictError(
        "a", "b", "c", bounds="1 run at once", given="2 run at once"
    ): "Leave limit_running and limit_rate out",
    errors.LimitConflictError("a", "b", "c"): "give limit_running",
    errors.ScheduleExistsError("a"): "use upsert",
    errors.ScheduleStateError("a", "paused", "pause"): "Resume a paused schedule",
    errors.ScheduleStateError("a", "done", "resume", "Use restart()."): "done. Use restart().",
    errors.RunStateError("a", "running", "retry"): "Wait until it has ended",
    errors.UnknownCalendarError("a", "b"): "create that first, or correct it",
    errors.CalendarNotFoundError("a", "b"): "`rqsched calendar list` shows those that exist",
    errors.CalendarInUseError("a", ["b"]): "take it out of their `exclude` first",
    errors.CalendarBusyError(["a", "b"], 3): "nothing was written, try again",
    errors.CalendarChangedError("a", "b"): "read it again and repeat the change",
    errors.VersionConflictError("a", 1, 2): "read it again and repeat the change",
    errors.IdempotencyConflictError("a"): "choose a new key",
    errors.NewerReleaseError("unknown key 'moon'"): "Ask a process of the newer release",
    errors.FrozenError(None, "frozen since noon"): "until `rqsched thaw --everything`; repeat it then",
    errors.FrozenError("a", "frozen since noon"): "until `rqsched thaw a`; repeat it then",
    errors.TransactionConflictError("deadlock"): "roll yours back and repeat it",
    errors.QuotaExceededError("a", "bytes", limit=1, used=1, wanted=1): "Delete what is not needed",
    errors.TooMuchWorkError("spec", 1): "exclude less",
    errors.WorkCancelledError(): "ask again",
    errors.NotExecutedError("a generator", "take `yield` out"): "take `yield` out",
    errors.DatabaseLimitError("timeout"): "Ask for less at once",
    errors.DatabaseInheritedError("a.db"): "Start this process again",
    errors.DatabasePrivilegeError(
        ["UPDATE ON a"], "refused", user="b"
    ): "run as the owner of the tables: GRANT UPDATE ON",
    errors.DatabasePrivilegeError([], "refused"): "Run the GRANT that the message names",
    http_errors.UnauthorizedError(): "send Authorization: Bearer TOKEN",
    http_errors.TooLargeError(1): "send less at once",
    http_errors.TooSlowError(1): "send it again",
    http_errors.BusyError(): "try again later, or send a token",
    http_errors.RateLimitedError(1): "try again in 1 s",
    http_errors.TooManyHeavyReadsError(): "try again later",
    http_errors.TooManyStreamsError(1): "try again later",
}
"""Errors that write their message themselves, and what to do in it."""
DO = re.compile(
    r"\b(add|ask|begin|call|choose|close|correct|create|declare|decorate|delete|drop|encode|end|enter|flatten|give|go"
    r"|install|leave|list|load|look|make|name|narrow|omit|open|pass|put|read|remove|rename|repeat|resume|return|run|say"
    r"|send|set|shorten|start|stop|store|take|trigger|try|unset|update|upgrade|use|wait|widen|write)\b"
    r"|\b(must|needs?|takes|only|see|at most|says why|is not one of|(limit|keys|events) (is|are))\b",
    re.IGNORECASE,
)
"""Words that say what to do, or what is valid."""
SAID_ELSEWHERE = {
    *("hint", "_hint(name)", "nearest", "instead", "reason", "error.reason"),
    *("_HOW", "HOW_TO_SAY", "_REMEDY", "NO_CLUSTER", "SERVE_ELSEWHERE"),
}
"""Interpolated names whose text already says what to do."""
ROWS = "rqsched.importers."
"""Modules of the import. Its table has its own column that says what to do about each refused row."""


def test_there_is_a_sample_of_every_error_that_writes_its_message() -> None:
    own = [kind for module in (errors, http_errors) for kind in vars(module).values() if isinstance(kind, type)]
    writing = {kind for kind in own if issubclass(kind, RqschedError) and "__init__" in vars(kind)}
    assert {type(error) for error in OWN} == writing - {errors.InvalidInputError}


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
def test_an_error_says_what_to_do(error: RqschedError) -> None:
    assert OWN[error] in str(error)


def raised() -> Iterator[tuple[str, str]]:
    """Yield each place where the package raises an error with a text, and that text."""
    free = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RqschedError)}
    free = (free | {"ForbiddenError", "MalformedError"}) - {type(error).__name__ for error in OWN}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _last_name(node.func) in free and node.args:
                yield f"{module}:{node.lineno}", written(node.args[-1])


def _last_name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def written(node: ast.expr) -> str:
    """The constant parts of a text; empty for one whose remedy, or all of it, is written elsewhere."""
    put_in = {ast.unparse(one.value) for one in ast.walk(node) if isinstance(one, ast.FormattedValue)}
    if put_in & SAID_ELSEWHERE or not isinstance(node, ast.Constant | ast.JoinedStr):
        return ""
    return " ".join(one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_each_text_that_is_raised_says_what_to_do() -> None:
    found = [(place, text) for place, text in raised() if text.strip() and not place.startswith(ROWS)]
    assert len(found) > 200
    assert [(place, text) for place, text in found if not DO.search(text)] == []


def test_a_caller_of_http_is_told_that_a_process_with_an_inherited_file_does_not_recover() -> None:
    problem = http_errors.problem_of(errors.DatabaseInheritedError("/var/lib/secret.db"))
    assert (problem.status, problem.code) == (503, "database_inherited")
    assert "must be started again" in problem.detail
    assert "secret" not in problem.detail
