"""The names code outside this repository imports: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import rqsched
from rqsched import RunHandle, ScheduleHandle, Scheduler, aio, client, dashboard, http, machines, testing, types
from rqsched.kernel.decide.option_table import Options
from tests.contract.sources import imports_of, modules

PUBLIC_NAMES = {
    "After",
    "BackfillRange",
    "Calendar",
    "CommandContext",
    "Cron",
    "Declaration",
    "Every",
    "FailurePolicy",
    "FanOutPolicy",
    "Gap",
    "MissedPolicy",
    "OnResume",
    "Once",
    "OverlapPolicy",
    "OverlapUntil",
    "Quota",
    "Registry",
    "Rerun",
    "RetryPolicy",
    "RqschedError",
    "RunCancelled",
    "RunContext",
    "RunHandle",
    "ScheduleHandle",
    "Scheduler",
    "Settings",
    "Spec",
    "current_run",
    "workflow",
}
"""What an application constructs, calls or names: 30 names at most."""
TYPES = {
    "Answer",
    "AuditRecord",
    "BackfillProgress",
    "BackfillRow",
    "BulkProgress",
    "BulkRow",
    "Calendars",
    "ClockEffect",
    "ClockNight",
    "ConnectionLike",
    "Count",
    "DeclarationOptions",
    "DeliveryDescription",
    "Description",
    "ErrorsLike",
    "ExcludeLike",
    "Excluded",
    "HeldRun",
    "HeldSchedule",
    "Hold",
    "LimitDescription",
    "LimitOutcome",
    "ListFilters",
    "Load",
    "MemberLike",
    "NamespaceData",
    "NotSimulated",
    "Options",
    "Page",
    "Peak",
    "Pruned",
    "QueueBehind",
    "QueueLoad",
    "QueueOutcome",
    "Recovered",
    "ReleasePreview",
    "Released",
    "RetryRow",
    "RunDescription",
    "ScheduleOutcome",
    "SessionLike",
    "SimulatedDay",
    "SimulatedSchedule",
    "Simulation",
    "SimulationOutcome",
    "SpanLike",
    "SpecLike",
    "Synced",
    "TargetDescription",
    "TargetProgress",
    "TriggerResult",
    "Usage",
    "When",
    "Why",
    "WritingOptions",
}
"""What only annotations name."""


def test_the_public_names_are_exactly_these() -> None:
    assert set(rqsched.__all__) == PUBLIC_NAMES
    assert len(PUBLIC_NAMES) <= 30
    assert set(types.__all__) == TYPES


def test_type_checkers_and_editors_see_the_types_that_are_imported_at_their_first_use() -> None:
    """What the module imports for a type checker alone is what it hands out."""
    read = [i.target.rpartition(".") for i in imports_of(types.__name__, modules()[types.__name__])]
    seen = {name: getattr(importlib.import_module(home), name) for home, _, name in read if home.startswith("rqsched")}
    assert seen == {name: getattr(types, name) for name in types.__all__}


OF_SURFACES = {"Named", "Request", "Run", "Runtime", "Schedule", "ScheduleRequest", "Source"}
"""Types that only our own surfaces use. Other users import the module that defines them."""
IN_PUBLIC_MODULES = {"Clock", "Declared", "Timing", "Workflow"}
"""Types of the public modules `rqsched.clock`, `rqsched.timing` and `rqsched.workflows`."""


def test_every_type_of_ours_that_a_public_signature_names_is_exported() -> None:
    kinds = [getattr(module, name) for module in (rqsched, types, client) for name in module.__all__]
    kinds += [aio.AsyncScheduler, aio.AsyncScheduleHandle, aio.AsyncRunHandle]
    named = {word for kind in kinds if inspect.isclass(kind) for word in _words_of_signatures(kind)}
    statements = [statement for path in modules().values() for statement in ast.parse(path.read_text()).body]
    ours = {name for statement in statements for name in _type_in(statement)}
    exported = PUBLIC_NAMES | TYPES | {*client.__all__, *aio.__all__} | OF_SURFACES | IN_PUBLIC_MODULES
    assert (named & ours) - exported == set()


def _type_in(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.ClassDef(name=name):
            yield name
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
            yield name


def _words_of_signatures(kind: type) -> set[str]:
    members = [member for name, member in inspect.getmembers(kind) if not name.startswith("_") or name == "__init__"]
    calls = [member.fget if isinstance(member, property) else member for member in members]
    annotations = [text for call in calls if inspect.isfunction(call) for text in call.__annotations__.values()]
    return {word for text in annotations for word in re.findall(r"\b[A-Z]\w+", str(text))}


MACHINE_NAMES = {"Dispatched", "MachineScheduler", "MachineStates", "find_machine", "in_state", "machine"}
TESTING_NAMES = {
    "MachineTest",
    "ManualClock",
    "assert_has_schedule",
    "assert_state",
    "empty_scheduler",
    "execute_pending",
    "run_due",
    "run_schedule",
    "tables_in",
}


def test_the_names_of_the_machines_extra_are_exactly_these() -> None:
    assert set(machines.__all__) == MACHINE_NAMES
    assert [name for name in MACHINE_NAMES if not getattr(machines, name).__doc__] == []


OF_HTTP = {"Limits", "Principal", "Role", "close_streams", "create_app", "run_server", "serve"}
OF_THE_DASHBOARD = {"Principal", "Role", "wsgi"}


@pytest.mark.parametrize(("module", "names"), [(http, OF_HTTP), (dashboard, OF_THE_DASHBOARD)])
def test_the_names_of_the_web_extras_are_exactly_these(module: ModuleType, names: set[str]) -> None:
    assert set(module.__all__) == names
    assert [name for name in names if not getattr(module, name).__doc__] == []


def test_the_helpers_for_tests_of_applications_are_exactly_these() -> None:
    own = [value for value in vars(testing).values() if getattr(value, "__module__", None) == testing.__name__]
    assert {value.__name__ for value in own if not value.__name__.startswith("_")} == TESTING_NAMES


def test_every_public_name_exists_and_says_what_it_is() -> None:
    undocumented = [name for name in PUBLIC_NAMES if not getattr(rqsched, name).__doc__]
    undocumented += [name for name in TYPES if not getattr(types, name).__doc__]
    assert undocumented == []


def test_create_documents_every_argument_and_option_in_one_place() -> None:
    arguments = [*inspect.signature(Scheduler.create).parameters, *Options.__annotations__]
    described = inspect.getdoc(Scheduler.create) or ""
    missing = [name for name in arguments if name not in {"self", "options"} and f"\n    {name}: " not in described]
    assert missing == []


def test_handles_have_no_untyped_attributes() -> None:
    for handle in (ScheduleHandle, RunHandle, aio.AsyncScheduleHandle, aio.AsyncRunHandle):
        assert not hasattr(handle, "__getattr__")
        untyped = [name for name, member in inspect.getmembers(handle, _is_property) if not _returns(member)]
        assert untyped == []


def _is_property(member: object) -> bool:
    return isinstance(member, property)


def _returns(member: property) -> object:
    return member.fget and member.fget.__annotations__.get("return")


def test_the_package_ships_its_types() -> None:
    assert (Path(rqsched.__file__).parent / "py.typed").exists()


def test_namespace_is_keyword_only_everywhere() -> None:
    kinds = (Scheduler, ScheduleHandle, RunHandle, aio.AsyncScheduler, client.Client, client.AsyncClient, testing, aio)
    positional = [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name, call in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and (found := inspect.signature(call).parameters.get("namespace"))
        and found.kind is not found.KEYWORD_ONLY
    ]
    assert positional == []


NOTHING_TO_AWAIT = {"create_request", "cron", "every", "from_env", "keep_recovering", "on", "declare", "scheduler"}
"""Names that AsyncScheduler leaves to the scheduler behind it."""


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (Scheduler, aio.AsyncScheduler),
        (ScheduleHandle, aio.AsyncScheduleHandle),
        (RunHandle, aio.AsyncRunHandle),
    ],
)
def test_async_handle_has_every_public_name_of_the_blocking_one(blocking: type, awaited: type) -> None:
    assert _public(blocking) == _public(awaited)


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - NOTHING_TO_AWAIT - {"runtime"}


IN_PROCESS: dict[type, set[str]] = {
    Scheduler: {
        "create_request", "cron", "every", "from_env", "keep_recovering", "newest", "on", "declare", "prune",
        "recover", "run", "simulate", "tick", "usages",
    },
    ScheduleHandle: {"backfill_in_chunks", "preview_backfill", "resume_backfill", "runtime", "state"},
    RunHandle: {"require_retryable", "runtime", "state"},
}  # fmt: skip
"""Names that need the database or the code of this process, and names that only surfaces call."""
OVER_HTTP: dict[type, set[str]] = {
    Scheduler: {
        "batch_delete", "calendar", "calendar_users", "delete_calendar", "events", "follow", "handle", "send",
        "set_calendar", "workflows",
    },
    ScheduleHandle: set(),
    RunHandle: set(),
}  # fmt: skip
"""Names that only the client has: streams, unread handles, and calendars, which are an object in the Scheduler."""
NOT_OVER_HTTP = {"connection", "context", "keep", "namespace", "progress", "session"}
"""Parameters that need this process (transactions, callbacks) or that the client replaces (token, namespace)."""


@pytest.mark.parametrize(
    ("near", "far"),
    [(Scheduler, client.Client), (ScheduleHandle, client.ScheduleHandle), (RunHandle, client.RunHandle)],
)
def test_client_has_the_methods_and_parameters_of_the_scheduler(near: type, far: type) -> None:
    names = {kind: {name for name in dir(kind) if not name.startswith("_")} for kind in (near, far)}
    names = {kind: found | {"schedule_id", "description"} for kind, found in names.items()}  # attributes of the client
    assert names[near] - names[far] == IN_PROCESS[near]
    assert names[far] - names[near] == OVER_HTTP[near]
    lacking = {
        f"{name}({parameter})"
        for name in (names[near] & names[far]) - {"schedule_id", "description"}
        for parameter in set(_parameters(near, name)) - set(_parameters(far, name)) - NOT_OVER_HTTP
    }
    assert lacking == set()


def _parameters(kind: type, name: str) -> Mapping[str, inspect.Parameter]:
    member = getattr(kind, name)
    return inspect.signature(member).parameters if inspect.isfunction(member) else {}


OTHER_DEFAULTS = {"sync(declarations)"}
"""In process it is what the decorators declared; a client's process may have declared nothing."""


@pytest.mark.parametrize(
    ("near", "far"),
    [(Scheduler, client.Client), (ScheduleHandle, client.ScheduleHandle), (RunHandle, client.RunHandle)],
)
def test_client_takes_its_parameters_as_the_scheduler_does(near: type, far: type) -> None:
    names = {name for name in dir(near) if not name.startswith("_") and hasattr(far, name)}
    shared = [
        (f"{name}({parameter})", _parameters(near, name)[parameter], _parameters(far, name)[parameter])
        for name in names
        for parameter in set(_parameters(near, name)) & set(_parameters(far, name))
    ]
    assert {said for said, here, there in shared if here.default != there.default} - OTHER_DEFAULTS == set()
    assert {said for said, here, there in shared if here.kind != there.kind} == set()
    filters = {said: (here.annotation, there.annotation) for said, here, there in shared if said.endswith("(filters)")}
    assert set(filters) == {f"{name}(filters)" for name in ("bulk", "count", "iter", "list") if near is Scheduler}
    assert set(filters.values()) <= {("Unpack[ListFilters]", "Unpack[ListFilters]")}


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (client.Client, client.AsyncClient),
        (client.ScheduleHandle, client.AsyncScheduleHandle),
        (client.RunHandle, client.AsyncRunHandle),
    ],
)
def test_async_client_has_every_public_name_of_the_blocking_one(blocking: type, awaited: type) -> None:
    assert {n for n in dir(blocking) if n[0] != "_"} == {n for n in dir(awaited) if n[0] != "_"}
