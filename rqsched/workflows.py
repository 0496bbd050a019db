"""The workflows that an application registers, by name. This file knows neither SQL nor Redis."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import traceback
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass, replace
from datetime import datetime
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

from rqsched.errors import InvalidIdError, InvalidInputError, NotExecutedError, UnknownWorkflowError
from rqsched.kernel.decide.notifications import workflow_name
from rqsched.kernel.decide.options import Options, timeout_seconds
from rqsched.kernel.fork_guard import ForkGuard, call_in_this_process
from rqsched.timing import When
from rqsched.when.duration import SpanLike

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
Enter = Callable[[], AbstractContextManager[Any]]
"""The argument of `around_runs`: a function that is called for each run and returns the context to execute it in."""
E = TypeVar("E", bound=Enter)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?")

ROUTING = ("queue", "connection", "timeout")
"""The attributes of a workflow that are defaults for the queue, the Redis and the timeout of its runs."""


class WorkflowNotFoundError(UnknownWorkflowError):
    """The workflow's module, or its name in the module, is missing in this process. Another process may find it.

    Code that is found but cannot be imported is an UnknownWorkflowError instead.
    """


class Step(NamedTuple):
    """A transition of a state machine by an event."""

    source: str
    """The state before it."""
    event: str
    """The event."""
    target: str
    """The state after it."""
    is_sent: bool
    """Whether the workflow sends this event."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A named unit of work with the defaults of its runs."""

    name: str
    """The name schedules use."""
    target: Callable[..., Any]
    """A function, an `async def`, or a class with a `run` method."""
    queue: str | None = None
    """The queue of its runs; None leaves it to the settings."""
    connection: str | None = None
    """The name of the Redis of its runs; None means the main Redis."""
    timeout: int | None = None
    """Seconds one attempt may take."""
    each: Callable[[str], bool] | None = None
    """The function that handles one target when its runs fan out; it returns False if there was nothing to do."""
    on_failure: str | None = None
    """The workflow that is run when a run failed or was lost, unless the schedule names another one."""
    on_recovery: str | None = None
    """The workflow that is run at the first success after a failure."""
    steps: tuple[Step, ...] = ()
    """If the workflow sends an event to state machines, the transitions of all events of their class; else empty."""
    targets: str | Callable[..., Any] | None = None
    """The function that returns the targets to call the workflow for; a schedule may name another. None calls it
    once."""

    @property
    def path(self) -> str:
        """The dotted path of the code."""
        return f"{self.target.__module__}.{self.target.__qualname__}"

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of schedules that do not set them: routing, workflows for failures and recoveries, targets."""
        values = {name: getattr(self, name) for name in (*ROUTING, "on_failure", "on_recovery")}
        values["targets"] = self.targets if isinstance(self.targets, str | None) else _path_of(self.targets)
        return {name: value for name, value in values.items() if value is not None}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute it in this thread and return its result; raises the errors of `require_executed`."""
        with surroundings():
            result = self.perform(args, kwargs)
            return require_executed(result) if isinstance(result, _MAYBE_UNEXECUTED) else result

    def perform(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Execute it as a call does, but without `surroundings`, which the caller has entered.

        The result may be a generator, as from a function that names targets.
        """
        made: Any = call_in_this_process(self.target) if inspect.isclass(self.target) else None
        result = call_in_this_process(self.target if made is None else made.run, *args, **kwargs)
        return _end_of(result) if inspect.iscoroutine(result) else result


_UNEXECUTED: tuple[tuple[tuple[type, ...], str, str], ...] = (
    ((Coroutine, Awaitable), "an awaitable", "write `async def`, and await it there"),
    ((AsyncGenerator,), "an async generator", "take `yield` out of the function, or consume it in an `async for`"),
    ((Generator,), "a generator", "take `yield` out of the function, or consume it there, as list(...) does"),
    ((map,), "a map", "use a `for` loop, or return list(...) of it"),
    ((filter,), "a filter", "use a `for` loop, or return list(...) of it"),
)


_MAYBE_UNEXECUTED = tuple(kind for kinds, *_ in _UNEXECUTED for kind in kinds)


def require_executed(result: R) -> R:
    """Return the result of a call; raises NotExecutedError for a result whose code runs only when consumed.

    Other iterators, such as files and the rows of a query, are results, because their code has run.
    """
    for kinds, kind, advice in _UNEXECUTED:
        if isinstance(result, kinds):
            if isinstance(result, Coroutine):
                result.close()  # otherwise Python warns that it was never awaited
            raise NotExecutedError(kind, advice)
    return result


_around: list[Enter] = []


def around_runs(enter: E) -> E:
    """Execute every run and target of this process in a context, such as a web application's; returns `enter`.

    >>> from contextlib import contextmanager
    >>> @around_runs
    ... @contextmanager
    ... def in_application() -> Iterator[None]:
    ...     print("begin")
    ...     yield

    Flask needs `around_runs(app.app_context)`. The context covers one attempt, its timeout included. The first context
    given is the outermost; a context that is given twice is entered once. An error on entering fails the attempt.
    """
    if enter not in _around:
        _around.append(enter)
    return enter


@contextmanager
def surroundings() -> Iterator[None]:
    """Enter the contexts of `around_runs`, and leave them at the end."""
    with ForkGuard(), ExitStack() as stack:
        for enter in _around:
            with ForkGuard():
                stack.enter_context(enter())
        yield


def _end_of(result: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine in a new event loop; if this thread already runs a loop, do so in another thread."""
    if not _has_loop():
        return asyncio.run(result)
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(copy_context().run, asyncio.run, result).result()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Registry:
    """The workflows of one process, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Workflow] = {}
        self._declared: dict[str, Declared] = {}

    def add(self, workflow: Workflow) -> None:
        """Register a workflow; it replaces an earlier workflow of the same name, as when a module is loaded again."""
        self._by_name[workflow.name] = workflow

    def get(self, name: str) -> Workflow | None:
        """Return the workflow of a name; None if this process does not know it."""
        return self._by_name.get(name)

    def all(self) -> list[Workflow]:
        """Return every workflow, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def resolve(self, name: str) -> Workflow:
        """Find a workflow by its name, or import it by its dotted path; raises the errors of `load_path`."""
        return self._by_name.get(name) or load_path(name)

    def name_of(self, workflow: str | Callable[..., Any]) -> str:
        """Return a workflow's name: as registered, else its dotted path; raises InvalidInputError."""
        if isinstance(workflow, str):
            return workflow
        known = next((known.name for known in self.all() if known.target is workflow), None)
        if known is not None:
            return known
        if callable_of(workflow) is not workflow:  # a task of Django
            return str(workflow.module_path)  # type: ignore[attr-defined]
        module, name = getattr(workflow, "__module__", None), getattr(workflow, "__qualname__", None)
        if not callable(workflow) or module is None or name is None:
            raise InvalidInputError("workflow", f"{workflow!r} is not a workflow; give its name, function or class")
        _require_importable(module, name)
        return f"{module}.{name}"

    def remove(self, name: str) -> None:
        """Forget a name; for tests that simulate a deploy."""
        self._by_name.pop(name, None)

    def declare(
        self,
        schedule_id: str,
        workflow: str,
        when: When,
        options: Options | None = None,
        note: str | None = None,
        paused: bool | None = None,
    ) -> None:
        """Declare a schedule for `Scheduler.sync` to create, in a module without a scheduler.

        A Timing is read by `sync`, so steps may still be added to it. A later declaration with the same id replaces
        this one.
        """
        self._declared[schedule_id] = (workflow, when, options or Options(), note, paused)

    def withdraw(self, schedule_id: str) -> None:
        """Forget a declaration; for tests that simulate a deploy."""
        self._declared.pop(schedule_id, None)

    def declared(self) -> dict[str, Declared]:
        """Return the declared schedules by schedule id, in the order of declaration."""
        return dict(self._declared)


Declared: TypeAlias = tuple[str, When, Options, str | None, bool | None]
"""A declaration without its id: workflow, timing, options, note, paused; see `rqsched.Declaration`."""
registry = Registry()
"""The registry of `@workflow`: decorators run at import, when there is no scheduler yet."""


@overload
def workflow(name: F) -> F: ...
@overload
def workflow(
    name: str | None = None,
    *,
    queue: str | None = None,
    connection: str | None = None,
    timeout: SpanLike | None = None,
    on_failure: str | None = None,
    on_recovery: str | None = None,
    targets: str | Callable[..., Any] | None = None,
) -> Callable[[F], F]: ...
def workflow(
    name: str | Callable[..., Any] | None = None,
    *,
    queue: str | None = None,
    connection: str | None = None,
    timeout: SpanLike | None = None,
    on_failure: str | None = None,
    on_recovery: str | None = None,
    targets: str | Callable[..., Any] | None = None,
) -> Any:
    """Register a function, an `async def` or a class with `run` as a workflow; returns it unchanged.

    >>> @workflow("invoice-sync", queue="high", timeout=600)
    ... def invoice_sync(region: str) -> None: ...

    The name defaults to the name of the function. `timeout` is a length such as `"10m"`, or seconds. `on_failure` and
    `on_recovery` name the workflows that run on its failures and on the first success after them. `targets` is a
    function that returns ids, or its name: a run then calls the workflow once for each id, in a separate job
    (docs/fan-out.md).

    Raises InvalidIdError for a name outside `[A-Za-z0-9_][A-Za-z0-9._:-]*`, and InvalidInputError for an object that
    cannot be called, or an invalid timeout.
    """
    if name is not None and not isinstance(name, str):
        return workflow()(name)

    def register(target: F) -> F:
        told: Any = {"on_failure": on_failure, "on_recovery": on_recovery}
        where: Any = {"queue": queue, "connection": connection, "timeout": timeout}
        registry.add(make_workflow(name, target, targets=targets, **where, **told))
        return target

    return register


class FannedOut(dict[str, Any]):
    """The result of a workflow that has named targets. The run ends when its last target ends."""

    @property
    def has_targets(self) -> bool:
        """Whether there is any target."""
        return bool(self.get("targets"))


def make_workflow(
    name: str | None,
    target: Callable[..., Any],
    *,
    queue: str | None = None,
    connection: str | None = None,
    timeout: SpanLike | None = None,
    on_failure: str | None = None,
    on_recovery: str | None = None,
    targets: str | Callable[..., Any] | None = None,
) -> Workflow:
    """Check a target and its name, and build the Workflow; see `workflow`."""
    wanted = name or getattr(target, "name", None) if inspect.isclass(target) else name
    wanted = wanted or getattr(target, "__name__", "")
    if name is None and callable(target) and wanted in {"", "<lambda>"}:
        raise InvalidIdError("workflow", f"{target!r} has no name of its own; write one, as @workflow('invoice-sync')")
    if not isinstance(wanted, str) or not _NAME.fullmatch(wanted):
        raise InvalidIdError(
            "workflow", f"{wanted!r} is not a valid workflow name; use at most 255 of A-Z a-z 0-9 . _ : -"
        )
    if not callable(target) or (inspect.isclass(target) and not callable(getattr(target, "run", None))):
        raise InvalidInputError("workflow", f"{target!r} is neither a function nor a class with a run method")
    if targets is not None and not isinstance(targets, str) and not callable(targets):
        raise InvalidInputError("targets", f"{targets!r} is neither a function that returns ids nor the name of one")
    return Workflow(
        wanted,
        target,
        queue,
        connection,
        timeout_seconds("timeout", timeout),
        on_failure=workflow_name("on_failure", on_failure),
        on_recovery=workflow_name("on_recovery", on_recovery),
        targets=targets,
    )


def _require_importable(module: str, name: str) -> None:
    """Check that a worker finds a function by its path; raises an InvalidInputError that says why not."""
    if name.endswith("<lambda>"):
        reason = "a lambda has no name"
    elif "<locals>" in name:
        reason = f"{name.rpartition('.')[2]!r} is defined inside a function"
    elif "." in name:
        reason = f"{name!r} belongs to a class"
    elif module == "__main__":
        reason = f"{name!r} is defined in the program that runs here, and workers run another one"
    else:
        return
    advice = "write a function in a module of RQSCHED_IMPORTS and decorate it with @workflow"
    raise InvalidInputError("workflow", f"{reason}, so no worker could import it; {advice}")


def _path_of(target: Callable[..., Any]) -> str:
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"


def is_path(name: str) -> bool:
    """Return whether a name has the form of a dotted path."""
    return _PATH.fullmatch(name) is not None


@singledispatch
def callable_of(found: Any) -> Any:
    """Return the callable for an object at a dotted path: the object itself, unless a framework registered another."""
    return found


def load_path(path: str) -> Workflow:
    """Import `package.module.function` (or `package.module:function`); raises UnknownWorkflowError.

    The error is a WorkflowNotFoundError if the module or the name in it is missing, or if Django is not set up, but not
    if the module's own code fails at import.
    """
    if not is_path(path):
        raise WorkflowNotFoundError(path)
    name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        kind = WorkflowNotFoundError if _is_missing(error, name) else UnknownWorkflowError
        raise kind(path, f"cannot import {path!r}: {import_failure(error)}") from error
    try:
        target = callable_of(getattr(module, attribute))
    except AttributeError as error:
        raise WorkflowNotFoundError(path, f"cannot import {path!r}: {import_failure(error)}") from error
    if not callable(target) or (inspect.isclass(target) and not callable(getattr(target, "run", None))):
        raise UnknownWorkflowError(path, f"{path!r} is neither a function nor a class with a run method")
    known = next((known for known in registry.all() if known.target is target), None)
    return Workflow(path, target) if known is None else replace(known, name=path, each=None)


def _is_missing(error: Exception, module: str) -> bool:
    """Return whether an import failed because the module is missing, or Django is not set up."""
    if isinstance(error, ModuleNotFoundError):
        return error.name is not None and f"{module}.".startswith(f"{error.name}.")
    return f"{type(error).__module__}.{type(error).__name__}" in _DJANGO_IS_NOT_SET_UP


_DJANGO_IS_NOT_SET_UP = frozenset(
    f"django.core.exceptions.{name}" for name in ("ImproperlyConfigured", "AppRegistryNotReady")
)


def import_failure(error: Exception) -> str:
    """Return why a user's module cannot be imported, with the line of code unless the error itself has it.

    If a wrong call of rqsched raises inside rqsched, the line is the last one outside of rqsched.
    """
    if isinstance(error, ImportError | AttributeError | SyntaxError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    outside = [place for place in places if not Path(place.filename).is_relative_to(Path(__file__).parent)]
    last = (outside or places)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


@dataclass(frozen=True)
class RunContext:
    """The run that executes now; `current_run()` returns it inside a workflow."""

    uid: str
    """The run's uid."""
    instance_id: str
    """Its name: `schedule:{schedule_id}:...`."""
    schedule_uid: str
    """The schedule's incarnation."""
    schedule_id: str
    """The schedule's id."""
    namespace: str
    """The schedule's namespace."""
    workflow: str
    """The workflow's name."""
    kind: str
    """The origin of the run: `scheduled`, `manual`, `backfill` or `after`."""
    status: str
    """The run's status when the attempt began: `running`."""
    occurrence_at: datetime
    """The nominal time of the occurrence, aware UTC; in a copy, that of the copied run."""
    attempt: int
    """1, 2, 3 ...; one attempt may be executed twice after SQL was restored from a backup (see `fence`)."""
    fence: int
    """The fencing token. Pass it to the system to which the workflow writes, so that it can refuse a smaller token.

    The token is the database's time of the claim, in microseconds since 1970, and larger than the previous attempt's.
    """
    scheduled_at: datetime
    """When it was due: the nominal time plus jitter; in a copy, the nominal time."""
    started_at: datetime
    """When this attempt began, aware UTC."""
    deadline_at: datetime
    """When the timeout ends the attempt."""
    trigger_number: int | None
    """The number of this start of the schedule, from 1; in a copy, that of the copied run."""
    repeat_number: int
    """How many of its runs had succeeded before this attempt began (Pipelit's `current_repeat`)."""
    labels: Mapping[str, str]
    """The schedule's labels."""
    memo: Mapping[str, Any]
    """The schedule's memo."""
    search_attributes: Mapping[str, Any]
    """The schedule's search attributes."""
    payload: Mapping[str, Any]
    """The keyword arguments (Pipelit's `trigger_payload`)."""
    _checkpoint: Callable[[], None]
    error: str | None = None
    """The error of the previous attempt; None without one."""
    target_id: str | None = None
    """The target that the workflow is called for; None in a run without targets, and while targets are named."""
    traceparent: str | None = None
    """The span of this attempt, in the form of the header `traceparent` (W3C Trace Context): pass it on in requests. If
    this process does not trace, it is the span of the fire or trigger; None if that was not traced either."""
    copied_from: str | None = None
    """The uid of the run that this run repeats, because somebody ran that run again; None if it is no copy."""
    result: Any = None
    """Always None while the run executes; a run handle has it afterwards."""
    ended_at: datetime | None = None
    """Always None while the run executes; a run handle has it afterwards."""

    @property
    def event_data(self) -> dict[str, Any]:
        """The trigger event in the Pipelit document's words."""
        return {
            "scheduled_job_id": self.schedule_uid,
            "scheduled_job_name": self.schedule_id,
            "repeat_number": self.repeat_number,
            "payload": dict(self.payload),
        }

    def checkpoint(self) -> None:
        """Send a heartbeat; raises RunCancelled once the run was cancelled, terminated or recorded as lost."""
        self._checkpoint()


_current: ContextVar[RunContext | None] = ContextVar("rqsched_current_run", default=None)


def current_run() -> RunContext:
    """Return the run that executes in this context; raises LookupError outside a workflow."""
    run = _current.get()
    if run is None:
        raise LookupError("no run executes in this context; call current_run() inside a workflow that rqsched executes")
    return run


def enter_run(run: RunContext) -> Token[RunContext | None]:
    """Make a run current; pass the result to `leave_run`."""
    return _current.set(run)


def leave_run(token: Token[RunContext | None]) -> None:
    """Undo `enter_run`."""
    _current.reset(token)
