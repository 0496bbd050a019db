"""Declarations: schedules written in code, by decorators or as values, which `sync` creates and updates."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack, cast

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.define import define, require_known
from rqsched.kernel.decide.options import Options, require_id, require_note
from rqsched.timing import Timing, When, unfold
from rqsched.when.duration import SpanLike
from rqsched.when.spec import Cron, Every
from rqsched.workflows import Registry, make_workflow, registry

F = TypeVar("F", bound=Callable[..., Any])
_ROUTING = ("queue", "connection", "timeout")
SYNC = "sync"
"""The value of `managed_by` for schedules that a sync created; `delete_removed` deletes no other schedules."""


@dataclass(frozen=True)
class Declaration:
    """One schedule of a declared set.

    >>> hourly = Declaration("hourly", "invoice-sync", Every("1h"), {"timezone": "Europe/Berlin"})
    >>> scheduler.sync([hourly]).created
    ['hourly']
    """

    schedule_id: str
    """Its id, unique in the set."""
    workflow: str | Callable[..., Any]
    """A registered name, the registered function or class, or a dotted path."""
    spec: When
    """The timing, in any form that `Scheduler.create` takes for `spec`."""
    options: Options = field(default_factory=Options)
    """The options, as for `Scheduler.create`."""
    note: str | None = None
    """Free text that is stored with the schedule."""
    paused: bool | None = None
    """True pauses the schedule, False resumes it. None leaves an existing schedule as it is, and makes a new schedule
    active."""


class DeclarationOptions(Options, total=False):
    """The options of a declaring decorator: the options of `Scheduler.create`, and two more."""

    note: str | None
    """Free text that is stored with the schedule."""
    paused: bool
    """True pauses the schedule, False resumes it. If it is left out, an existing schedule stays as it is."""


class Declarations:
    """The schedules that the decorators of one scheduler, or of all schedulers with the process's settings, declared.

    The declarations of the workflow registry come first. If an id is declared twice, the newest declaration wins.
    """

    def __init__(self, workflows: Registry, beside: Declarations | None = None) -> None:
        """Collect the declarations of one scheduler. The declarations of `beside` are read too, but not changed."""
        self._workflows = workflows
        self._declared: ChainMap[str, Declaration] = ChainMap({}, *([beside._declared] if beside else []))

    def all(self) -> list[Declaration]:
        """Return every declaration."""
        registered = {id_: Declaration(id_, *declared) for id_, declared in self._workflows.declared().items()}
        return list({**registered, **self._declared}.values())

    def add(self, declaration: Declaration) -> None:
        """Add a declaration."""
        self._declared[declaration.schedule_id] = declaration

    def on(self, when: When, schedule_id: str | None, name: str | None, options: Mapping[str, Any]) -> Callable[[F], F]:
        """Return the decorator that registers a workflow and declares its schedule.

        Queue, connection and timeout become the workflow's defaults. All values are checked here and not at start-up,
        so that an error points to the decorated function; raises InvalidInputError.
        """
        routing = {key: options[key] for key in _ROUTING if key in options}
        own = {key: options[key] for key in ("note", "paused") if key in options}
        others = {key: options[key] for key in options if key not in {*routing, *own}}
        require_known(others, Declaring.cron)
        spec, merged = unfold(when, others)
        define(None, {**merged, **routing}, workflow="checked", spec=spec)
        require_note(own.get("note"))

        def declare(target: F) -> F:
            workflow = make_workflow(name, target, **routing)
            declaration = Declaration(
                require_id(schedule_id or workflow.name), workflow.name, spec, cast("Options", merged), **own
            )
            self._workflows.add(workflow)
            self.add(declaration)
            return target

        return declare


of_process = Declarations(registry)
"""The declarations of all schedulers with the process's own database and settings. Each of these schedulers syncs all
these declarations."""


class Declaring:
    """The decorators of a scheduler: each registers a workflow and declares its schedule."""

    declarations: Declarations
    """The schedules that the decorators have declared."""

    def cron(
        self,
        expression: str,
        *,
        schedule_id: str | None = None,
        name: str | None = None,
        **options: Unpack[DeclarationOptions],
    ) -> Callable[[F], F]:
        """Register a workflow and declare its schedule. Call `sync()` at start-up to create or update the schedule.

        >>> @scheduler.cron("0 3 * * *", timezone="Europe/Berlin")
        ... def tidy_up() -> None: ...
        >>> scheduler.sync().created
        ['tidy_up']

        `schedule_id` and `name` default to the function's name. Queue, connection and timeout become the workflow's
        defaults.
        """
        return self.declarations.on(Cron(expression), schedule_id, name, options)

    def every(
        self,
        interval: SpanLike,
        *,
        offset: SpanLike | None = None,
        schedule_id: str | None = None,
        name: str | None = None,
        **options: Unpack[DeclarationOptions],
    ) -> Callable[[F], F]:
        """Register a workflow and declare its schedule at an interval; see `cron`."""
        return self.declarations.on(Every(interval, offset=offset), schedule_id, name, options)

    def declare(
        self,
        timing: Timing,
        *,
        schedule_id: str | None = None,
        name: str | None = None,
        **options: Unpack[DeclarationOptions],
    ) -> Callable[[F], F]:
        """Register a workflow and declare its schedule with a fluent timing; see `cron` and `Timing`."""
        return self.declarations.on(timing, schedule_id, name, options)


def require_distinct(declarations: Iterable[Declaration]) -> None:
    """Check that no id is declared twice; raises InvalidInputError."""
    seen: set[str] = set()
    for declared in declarations:
        if declared.schedule_id in seen:
            raise InvalidInputError("schedule_id", f"{declared.schedule_id!r} is declared twice; declare it once")
        seen.add(declared.schedule_id)
