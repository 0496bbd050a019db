"""Declarations: schedules written in code, by decorators or as values, which `sync` creates and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from rqsched.core.schedule_options import Options, define, require_id, require_note
from rqsched.timing import When, unfold
from rqsched.workflows import Registry, make_workflow

F = TypeVar("F", bound=Callable[..., Any])
_ROUTING = ("queue", "connection", "timeout")
SYNC = "sync"
"""`managed_by` of the schedules a sync made; only those are pruned."""


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
    """When: all that `Scheduler.create` takes as `spec`."""
    options: Options = field(default_factory=Options)
    """The options `Scheduler.create` lists."""
    note: str | None = None
    """Free text kept with the schedule."""
    paused: bool | None = None
    """True pauses, False resumes; None leaves a known schedule as it is and creates an active one."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync did, as schedule ids."""

    created: list[str]
    """New ones."""
    updated: list[str]
    """Known ones that were declared differently."""
    unchanged: list[str]
    """Known ones as declared."""
    removed: list[str]
    """Deleted by `prune`."""


class DeclarationOptions(Options, total=False):
    """What a declaring decorator takes beside the timing: the options of `Scheduler.create`, and these."""

    note: str | None
    """Free text kept with the schedule."""
    paused: bool
    """True pauses, False resumes; without it a known schedule stays as it is."""


class Declarations:
    """The schedules an application declares with decorators, in the order of declaration."""

    def __init__(self, workflows: Registry) -> None:
        self._workflows = workflows
        self._declared: dict[str, Declaration] = {}

    def all(self) -> list[Declaration]:
        """Return every declaration, those of the registry first; the newest of an id wins."""
        registered = {id_: Declaration(id_, *declared) for id_, declared in self._workflows.declared().items()}
        return list((registered | self._declared).values())

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
