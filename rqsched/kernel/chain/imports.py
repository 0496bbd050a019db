"""The application's code in this process: the modules in RQSCHED_IMPORTS, and the workflows that they register."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib.machinery import ModuleSpec
from typing import Any

from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.workflows import Registry, Workflow, WorkflowNotFoundError, import_failure

_log = logging.getLogger(__name__)


class Imports:
    """Imports RQSCHED_IMPORTS, at once or when a workflow is first needed, and finds workflows."""

    def __init__(self, settings: Settings, workflows: Registry) -> None:
        self.error: str | None = None
        """Why a module in RQSCHED_IMPORTS was not imported, else None. With an error most processes refuse to start."""
        self._settings = settings
        self.workflows = workflows
        """The workflows that the modules register."""
        self._are_owed = False
        self._opened_by: ModuleSpec | None = None

    def owe(self, opened_by: ModuleSpec | None) -> None:
        """Import RQSCHED_IMPORTS later: when a workflow is needed, but not while `opened_by` is being imported.

        `opened_by` is the module that opened the scheduler. It must be complete, because the modules in RQSCHED_IMPORTS
        may import it.
        """
        self._are_owed, self._opened_by = True, opened_by

    def require(self) -> None:
        """Import RQSCHED_IMPORTS if that was not done yet.

        Raises ConfigError if an import fails, or if the module that opened the scheduler is still being imported.
        """
        if not (self._are_owed or self.error):
            return
        missing = [name for name in self._settings.imports if name not in sys.modules]
        if missing and self._is_too_early():
            raise ConfigError(
                f"RQSCHED_IMPORTS names {missing[0]!r}, which is not imported while the module that opened this "
                "scheduler is: call this when your application is made, not while its module is imported."
            )
        import_workflows(self._settings)  # several threads may come here, but Python imports each module once
        self._are_owed, self.error = False, None

    def attempt(self) -> None:
        """Import RQSCHED_IMPORTS if that was not done yet and is not too early. Log a failure once."""
        if not self._are_owed or self._is_too_early():
            return
        try:
            self.require()
        except ConfigError as error:
            self._are_owed, self.error = False, str(error)
            _log.error("workflows are not imported: %s", error, extra={"action": "import_failed"})

    def _is_too_early(self) -> bool:
        """Return whether the module `opened_by` is still being imported. Python notes this in the module's spec."""
        return bool(getattr(self._opened_by, "_initializing", False))

    def find(self, name: str) -> Workflow | None:
        """Return the workflow with a name, or None if this process does not know the name."""
        self.attempt()
        return self.workflows.get(name)

    def all(self) -> list[Workflow]:
        """Return every workflow that this process knows, by name."""
        self.attempt()
        return self.workflows.all()

    def name_of(self, workflow: str | Callable[..., Any]) -> str:
        """Return a workflow's name: as registered, else its dotted path; raises InvalidInputError."""
        self.attempt()
        return self.workflows.name_of(workflow)

    def resolve(self, name: str) -> Workflow:
        """Find a workflow for a run; raises WorkflowNotFoundError, which also says which import failed."""
        self.attempt()
        try:
            return self.workflows.resolve(name)
        except WorkflowNotFoundError as error:
            if self.error is None:
                raise
            raise WorkflowNotFoundError(name, f"{error.reason} {self.error}") from error


def import_workflows(settings: Settings) -> None:
    """Import the modules in RQSCHED_IMPORTS, also from the working directory.

    If a module cannot be imported, this imports the other modules and then raises ConfigError with the reason.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")
    first: tuple[str, Exception] | None = None
    token = _importing.set(True)
    for module in settings.imports:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - whatever a user's module does wrong
            first = first or (module, error)
    _importing.reset(token)
    if first is not None:
        module, failure = first
        reason = import_failure(failure)
        raise ConfigError(
            f"RQSCHED_IMPORTS names {module!r}, which cannot be imported: {reason}. Correct the module or the setting."
        ) from failure


def is_importing_workflows() -> bool:
    """Return whether `import_workflows` is running in this context."""
    return _importing.get()


_importing: ContextVar[bool] = ContextVar("rqsched_importing", default=False)
