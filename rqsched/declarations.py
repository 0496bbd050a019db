"""Declarations: schedules written down in code, by decorators or as values, for `sync` to bring about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .definition import Options
from .spec import SpecLike
from .timing import Timing
from .workflows import Registry, make_workflow

F = TypeVar("F", bound=Callable[..., Any])
SYNC = "sync"
"""`managed_by` of the schedules a sync made; only those are pruned."""


@dataclass(frozen=True)
class Declaration:
    """One schedule of a declared set."""

    schedule_id: str
    workflow: str | Callable[..., Any]
    spec: SpecLike
    options: Options = field(default_factory=Options)
    """The keyword arguments `create` takes."""
    note: str | None = None
    paused: bool | None = None
    """None leaves a known schedule as it is."""


class Declarations:
    """The schedules an application declares with decorators, in the order it does."""

    def __init__(self, workflows: Registry) -> None:
        self._workflows = workflows
        self._declared: dict[str, Declaration] = {}

    def all(self) -> list[Declaration]:
        """Give every declaration; the newest of an id wins."""
        return list(self._declared.values())

    def add(self, declaration: Declaration) -> None:
        """Add a declaration."""
        self._declared[declaration.schedule_id] = declaration

    def on(self, spec: SpecLike | Timing, schedule_id: str | None, name: str | None, options: dict[str, Any]) -> Any:
        """Make the decorator that registers a workflow and declares its schedule."""
        routing = {key: options.pop(key) for key in ("queue", "connection", "timeout") if key in options}

        def declare(target: F) -> F:
            workflow = make_workflow(name, target, **routing)
            self._workflows.add(workflow)
            when, more = (spec.spec(), spec.options()) if isinstance(spec, Timing) else (spec, Options())
            merged = Options(**{**more, **options})  # type: ignore[typeddict-item]
            self.add(Declaration(schedule_id or workflow.name, workflow.name, when, merged))
            return target

        return declare
