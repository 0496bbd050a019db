"""Declarations: schedules written in code, by decorators or as values, which `sync` creates and updates."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack, cast

from rqsched.errors import InvalidInputError
from rqsched.kernel.decide.option_table import Options, require_id, require_note
from rqsched.kernel.decide.schedule_options import define, require_known
from rqsched.timing import Timing, When, unfold
from rqsched.when.duration import SpanLike
from rqsched.when.spec import Cron, Every
from rqsched.workflows import Registry, make_workflow, registry

F = TypeVar("F", bound=Callable[..., Any])
_ROUTING = ("queue", "connection", "timeout")
SYNC = "sync"
"""`managed_by` of the schedules a sync made; `delete_removed` deletes no others."""


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
    """The timing, as `Scheduler.create` takes it as `spec`."""
    options: Options = field(default_factory=Options)
    """The options `Scheduler.create` lists."""
    note: str | None = None
    """Free text kept with the schedule."""
    paused: bool | None = None
    """True pauses, False resumes; None leaves a known schedule as it is and creates an active one."""


class DeclarationOptions(Options, total=False):
    """The parameters of a declaring decorator beside the timing: the options of `Scheduler.create`, and these."""

    note: str | None
    """Free text kept with the schedule."""
    paused: bool
    """True pauses, False resumes; without it a known schedule stays as it is."""


class Declarations:
    """The schedules declared with the decorators of one scheduler, or of all schedulers on the process's own settings.

    The registry's declarations come first, the others follow in their order; the newest of an id wins.
    """

    def __init__(self, workflows: Registry, beside: Declarations | None = None) -> None:
        """Declare for one scheduler; the declarations of `beside` are read, too, but not changed."""
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

        Queue, connection and timeout become the workflow's defaults. Everything is checked here, at the decorated
        function, not at start-up; raises an InvalidInputError.
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
"""The declarations of every scheduler on the process's own database and settings; each of these syncs them."""


class Declaring:
    """The decorators of a scheduler: each registers a workflow and declares its schedule."""

    declarations: Declarations
    """The schedules that they have declared."""

    def cron(
        self,
        expression: str,
        *,
        schedule_id: str | None = None,
        name: str | None = None,
        **options: Unpack[DeclarationOptions],
    ) -> Callable[[F], F]:
        """Register a workflow and declare its schedule in one line; `sync()` at start-up creates or updates it.

        >>> @scheduler.cron("0 3 * * *", timezone="Europe/Berlin")
        ... def tidy_up() -> None: ...
        >>> scheduler.sync().created
        ['tidy_up']

        `schedule_id` and `name` default to the function's name; queue, connection and timeout are the workflow's
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
