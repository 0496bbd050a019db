"""Check the names of workflows, targets, connections and queues in options, and what notifications require."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from rqsched.config import Settings
from rqsched.errors import ConfigError, InvalidInputError, UnknownWorkflowError
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.model import Definition
from rqsched.kernel.decide.notifications import Notifications
from rqsched.kernel.decide.payload import loads
from rqsched.kernel.decide.policy import RetryPolicy
from rqsched.kernel.store import registered_workflows
from rqsched.timing import When, unfold
from rqsched.when.spec import After, Cron, Spec, SpecLike
from rqsched.workflows import ROUTING

SENTRY_MISSING = (
    "sentry-sdk is not installed here, and check-ins at Sentry are asked for: install it (pip install sentry-sdk), or "
    "turn RQSCHED_SENTRY_CHECKINS and the option notifications.sentry off."
)


def workflow_defaults(runtime: Runtime, name: str) -> dict[str, Any]:
    """Return the routing defaults of a workflow that some process registered, or that is importable by its path.

    Raises UnknownWorkflowError if there is no such workflow.
    """
    if (here := runtime.imports.find(name)) is not None:
        return here.defaults
    row = runtime.database.read(lambda connection: registered_workflows.find(connection, name))
    if row is None:
        return runtime.imports.resolve(name).defaults
    options = {name: value for name, value in loads(row["options"]).items() if name in (*_TOLD, "targets")}
    return {name: row[name] for name in ROUTING if row[name] is not None} | options


_TOLD = ("on_failure", "on_recovery")


def defaults_of(runtime: Runtime, name: str, *, is_external: bool = False) -> dict[str, Any]:
    """Return the defaults for schedules of a workflow: the defaults of the settings, replaced by the workflow's own.

    Raises UnknownWorkflowError as `workflow_defaults` does, unless an external worker executes the workflow.
    """
    told = {option: value for option in _TOLD if (value := getattr(runtime.settings, option)) is not None}
    return told if is_external else told | workflow_defaults(runtime, name)


def unknown_told(runtime: Runtime) -> dict[str, str]:
    """Return the settings that name an unknown workflow, with the workflow's name."""
    named = {option: name for option in _TOLD if (name := getattr(runtime.settings, option)) is not None}
    unknown = {}
    for option, name in named.items():
        try:
            workflow_defaults(runtime, name)
        except UnknownWorkflowError:
            unknown[option] = name
    return unknown


def define_new(
    runtime: Runtime, workflow: str | Callable[..., Any], when: When, given: Mapping[str, Any]
) -> Definition:
    """Check a workflow, a timing and options, and return the definition of the new schedule that has them."""
    name = runtime.imports.name_of(workflow)
    spec, options = unfold(when, given)
    return new_definition(runtime, name, spec, options, is_external=options.get("executor") == "external")


def new_definition(
    runtime: Runtime, workflow: str, spec: SpecLike, options: Mapping[str, Any], *, is_external: bool
) -> Definition:
    """Return the definition of a new schedule; settings and workflow give the defaults for missing options.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    options = fill(runtime.settings, options, spec, is_new=True)
    require_connection(runtime, options.get("connection"))
    defaults = defaults_of(runtime, workflow, is_external=is_external)
    require_queue(runtime, options.get("queue") or defaults.get("queue"))
    require_notifications(runtime, {**defaults, **options})
    return define(None, with_named_targets(runtime, options), workflow=workflow, spec=spec, defaults=defaults)


class Redefinition(NamedTuple):
    """A checked change of a schedule's definition."""

    workflow: str | None
    """The name of the new workflow; None keeps the workflow."""
    spec: SpecLike | None
    """The new timing; None keeps the timing."""
    options: Mapping[str, Any]
    """The options to change."""
    defaults: Mapping[str, Any] | None
    """The defaults of the new workflow; None keeps the defaults."""

    def of(self, definition: Definition) -> Definition:
        """Return a definition with the change; raises InvalidInputError that names the option."""
        return define(definition, self.options, workflow=self.workflow, spec=self.spec, defaults=self.defaults)


def redefine(
    runtime: Runtime,
    definition: Definition,
    workflow: str | Callable[..., Any] | None,
    when: When | None,
    given: Mapping[str, Any],
) -> Redefinition:
    """Check a change of a definition: a new workflow, a new timing, and options. None keeps the workflow or the timing.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    spec: SpecLike | None = None
    options, name, defaults = dict(given), None, None
    if when is not None:
        spec, options = unfold(when, given)
    options = fill(runtime.settings, options, spec, is_new=False)
    if workflow is not None:
        name = runtime.imports.name_of(workflow)
        is_external = options.get("executor", definition.executor) == "external"
        defaults = defaults_of(runtime, name, is_external=is_external)
    require_connection(runtime, options.get("connection"))
    require_notifications(runtime, {**(defaults or {}), **options})
    change = Redefinition(name, spec, with_named_targets(runtime, options), defaults)
    wanted = change.of(definition)
    require_queue(runtime, wanted.queue or loads(wanted.defaults).get("queue"))
    return change


def fill(settings: Settings, options: Mapping[str, Any], spec: SpecLike | None, *, is_new: bool) -> dict[str, Any]:
    """Return the options with the defaults of the settings.

    A new schedule gets the defaults for missing options. A known schedule gets them for options that the caller resets
    (None), and for the timezone of a Spec without a timezone.
    """
    filled = dict(options)
    says_when = spec is not None and (is_new or isinstance(spec, Spec | Mapping))
    if says_when and settings.timezone != "UTC" and not (options.get("timezone") or _names_timezone(spec)):
        filled["timezone"] = settings.timezone
    for name in ("retry", "target_retry"):
        default: RetryPolicy | None = getattr(settings, name)
        if default is not None and (is_new or name in options):
            filled[name] = _filled_retry(options.get(name), default, is_new=is_new)
    return filled


def _names_timezone(spec: SpecLike | None) -> bool:
    if isinstance(spec, Mapping):
        return bool(spec.get("timezone") or spec.get("after"))
    if isinstance(spec, Spec):
        return spec.names_timezone or spec.after is not None
    return isinstance(spec, After) or (isinstance(spec, Cron) and spec.timezone is not None)


def _filled_retry(given: Any, default: RetryPolicy, *, is_new: bool) -> Any:
    if given is None:
        return default
    if not isinstance(given, Mapping):
        return given
    whole = {field.name: getattr(default, field.name) for field in fields(default)}
    said = {name: whole.get(name) if value is None else value for name, value in given.items()}
    return {**whole, **said} if is_new else said


def require_notifications(runtime: Runtime, options: Mapping[str, Any]) -> None:
    """Check that a schedule's notifications have what they need: their workflows, the secret, sentry-sdk.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    Notifications().with_options({name: options[name] for name in (*_TOLD, "notifications") if name in options})
    for option in _TOLD:
        if isinstance(name := options.get(option), str):
            try:
                workflow_defaults(runtime, name)
            except UnknownWorkflowError as error:
                error.add_note(f"named by {option}, or by RQSCHED_{option.upper()}")
                raise
    wanted = options.get("notifications")
    if not isinstance(wanted, Mapping):
        return
    if wanted.get("webhook") is not None and runtime.settings.webhook_secret is None:
        raise InvalidInputError(
            "notifications.webhook", "is signed: set RQSCHED_WEBHOOK_SECRET here and in the workers"
        )
    if wanted.get("sentry") and not has_sentry():
        raise InvalidInputError("notifications.sentry", SENTRY_MISSING)


def require_sentry(settings: Settings) -> None:
    """Raise ConfigError, which says what to do, if the settings ask for check-ins and sentry-sdk is not installed."""
    if settings.sentry_checkins and not has_sentry():
        raise ConfigError(SENTRY_MISSING)


def has_sentry() -> bool:
    """Return whether sentry-sdk can be imported."""
    return importlib.util.find_spec("sentry_sdk") is not None


def with_named_targets(runtime: Runtime, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the function in `targets` replaced by its name. It must be registered or importable.

    Raises UnknownWorkflowError, or InvalidInputError that names the option.
    """
    targets = options.get("targets")
    if targets is None:
        return dict(options)
    if not isinstance(targets, str) and not callable(targets):
        raise InvalidInputError("targets", f"{targets!r} is neither a function that returns ids nor the name of one")
    name = runtime.imports.name_of(targets)
    try:
        workflow_defaults(runtime, name)
    except UnknownWorkflowError as error:
        error.add_note("named by targets")
        raise
    return {**options, "targets": name}


def require_connection(runtime: Runtime, name: str | None) -> None:
    """Check that a schedule's connection is configured; raises InvalidInputError."""
    known = runtime.settings.connections
    if name is not None and name not in known:
        configured = ", ".join(sorted(known)) or "none is"
        raise InvalidInputError("connection", f"{name!r} is not configured ({configured}); see RQSCHED_CONNECTIONS")


def require_queue(runtime: Runtime, name: str | None) -> None:
    """Check that runs do not go to the control queue; raises InvalidInputError.

    Workers of the control queue read every id on that queue as a link, so such a run would never start.
    """
    if name is not None and name == runtime.settings.control_queue:
        reason = "is the control queue, which carries links only; name another, or leave it out for the default one"
        raise InvalidInputError("queue", f"{name!r} {reason}")


def is_registered(runtime: Runtime, name: str) -> bool:
    """Return whether some process registered a workflow with this name; dotted paths do not count."""
    if runtime.imports.find(name) is not None:
        return True
    return runtime.database.read(lambda connection: registered_workflows.find(connection, name)) is not None
