"""The names code outside this repository imports: adding one is a decision, removing one breaks somebody."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rqsched
from rqsched import RunHandle, ScheduleHandle, Scheduler, aio, client, dashboard, http, machines, testing, types
from rqsched.kernel.decide.options import Options
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
    "Backfills",
    "Bounds",
    "BulkOperations",
    "BulkProgress",
    "BulkRow",
    "Calendars",
    "ClockEffect",
    "ClockNight",
    "ConnectionLike",
    "Count",
    "DeclarationOptions",
    "DeliveryDescription",
    "DeliveryStatus",
    "Description",
    "DueSchedule",
    "ErrorsLike",
    "ExcludeLike",
    "Excluded",
    "Freeze",
    "LastOutcome",
    "LimitDescription",
    "LimitOutcome",
    "Limits",
    "ListFilters",
    "Load",
    "MemberLike",
    "NamespaceData",
    "Namespaces",
    "NotSimulated",
    "Notifications",
    "Options",
    "Page",
    "Peak",
    "Pruned",
    "QueueBehind",
    "QueueLoad",
    "QueueOutcome",
    "Recovered",
    "RetryRow",
    "Run",
    "RunDescription",
    "RunKind",
    "RunListFilters",
    "RunStatus",
    "Runs",
    "Schedule",
    "ScheduleOutcome",
    "ScheduleStatus",
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
    "TargetStatus",
    "ThawPreview",
    "Thawed",
    "TriggerResult",
    "Usage",
    "WaitingRun",
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


OF_SURFACES = {"Named", "Request", "Runtime", "ScheduleRequest", "Source"}
"""Types that only our own surfaces use. Other users import the module that defines them."""
OF_ROWS = {"Definition", "Moves", "Policies", "Skips"}
"""Types of parts of a schedule's row, which handles show under names of their own."""
IN_PUBLIC_MODULES = {"Clock", "Declared", "Timing", "Workflow"}
"""Types of the public modules `rqsched.clock`, `rqsched.timing` and `rqsched.workflows`."""


def test_every_type_of_ours_that_a_public_signature_names_is_exported() -> None:
    kinds = [getattr(module, name) for module in (rqsched, types, client) for name in module.__all__]
    kinds += [aio.AsyncScheduler, aio.AsyncScheduleHandle, aio.AsyncRunHandle]
    named = {word for kind in kinds if inspect.isclass(kind) for word in _words_of_signatures(kind)}
    statements = [statement for path in modules().values() for statement in ast.parse(path.read_text()).body]
    ours = {name for statement in statements for name in _type_in(statement)}
    exported = PUBLIC_NAMES | TYPES | {*client.__all__, *aio.__all__} | OF_SURFACES | OF_ROWS | IN_PUBLIC_MODULES
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
    "running",
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


def operations(kind: object) -> dict[str, Any]:
    """Return the public functions of a class or module by their path: `create`, `limits.set`."""
    found = {}
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member) or inspect.ismethod(member):
            found[name] = member
        elif inspect.isclass(kind) and inspect.isclass(member):
            found |= {f"{name}.{one}": operation for one, operation in operations(member).items()}
    return found


def attributes(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} | operations(kind).keys()


def parameters(operation: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(operation).parameters)


def test_namespace_is_keyword_only_everywhere() -> None:
    kinds = (Scheduler, ScheduleHandle, RunHandle, aio.AsyncScheduler, client.Client, client.AsyncClient, testing, aio)
    positional = [
        (kind, path)
        for kind in kinds
        for path, operation in operations(kind).items()
        if (found := parameters(operation).get("namespace")) and found.kind is not found.KEYWORD_ONLY
    ]
    assert positional == []


MOST_METHODS = 25
"""Of the scheduler itself; operations on another noun stand in a group."""


def test_the_scheduler_has_few_methods_beside_its_groups() -> None:
    own = {path for path in operations(Scheduler) if "." not in path}
    assert len(own) <= MOST_METHODS, sorted(own)


GROUPS = {"backfills", "bulk", "calendars", "limits", "namespaces", "runs"}
PAIRS = [
    (Scheduler, aio.AsyncScheduler),
    (ScheduleHandle, aio.AsyncScheduleHandle),
    (RunHandle, aio.AsyncRunHandle),
    (client.Client, client.AsyncClient),
    (client.ScheduleHandle, client.AsyncScheduleHandle),
    (client.RunHandle, client.AsyncRunHandle),
]
NOTHING_TO_AWAIT = {"cron", "every", "from_env", "keep_recovering", "on", "declare", "runtime", "scheduler"}
"""Attributes that AsyncScheduler leaves to the scheduler behind it."""
AT_ONCE = {"handle"}
"""Operations of AsyncClient that wait for nothing."""


@pytest.mark.parametrize("kind", [Scheduler, aio.AsyncScheduler, client.Client, client.AsyncClient])
def test_a_scheduler_and_a_client_have_the_same_groups(kind: type) -> None:
    assert {name for name, _ in inspect.getmembers(kind, inspect.isclass) if not name.startswith("_")} == GROUPS


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_what_is_awaited_has_the_operations_and_parameters_of_what_blocks(blocking: type, awaited: type) -> None:
    assert attributes(blocking) - NOTHING_TO_AWAIT == attributes(awaited) - NOTHING_TO_AWAIT
    both = [(path, operation, operations(blocking)[path]) for path, operation in operations(awaited).items()]
    assert [path for path, here, there in both if parameters(here) != parameters(there)] == []


@pytest.mark.parametrize("awaited", [awaited for _, awaited in PAIRS])
def test_every_operation_that_is_awaited_is_asynchronous(awaited: type) -> None:
    assert {path for path, operation in operations(awaited).items() if not _is_asynchronous(operation)} <= AT_ONCE


def _is_asynchronous(operation: Any) -> bool:
    if inspect.iscoroutinefunction(operation) or inspect.isasyncgenfunction(operation):
        return True
    # An iterator of a client is asynchronous if its client's pages and chunks are.
    return any(kind in str(operation.__annotations__.get("return")) for kind in ("Iterator", "AsyncGenerator"))


FAR = [(Scheduler, client.Client), (ScheduleHandle, client.ScheduleHandle), (RunHandle, client.RunHandle)]
IN_PROCESS: dict[type, set[str]] = {
    Scheduler: {
        "calendars.named", "cron", "every", "from_env", "keep_recovering", "namespaces.usages", "newest", "on",
        "declare", "prune", "recover", "runs.get", "simulate", "tick",
    },
    ScheduleHandle: {"backfill_in_chunks", "runtime", "state"},
    RunHandle: {"runtime", "state"},
}  # fmt: skip
"""Operations that need the database or the code of this process, or that no route has."""
OVER_HTTP: dict[type, set[str]] = {
    Scheduler: {"batch_delete", "events", "follow", "handle", "send", "workflows"},
    ScheduleHandle: set(),
    RunHandle: set(),
}
"""Operations that only the client has: streams, unread handles, requests."""
NOT_OVER_HTTP = {"connection", "context", "keep", "namespace", "progress", "session"}
"""Parameters that need this process (transactions, callbacks) or that the client replaces (token, namespace)."""
OF_THE_CLIENT = {"calendars.delete(reason)", "calendars.set(reason)", "iter_history(follow)", "limits.set(reason)"}
"""Parameters that a scheduler has not: the client has no `context` that says why."""
OTHERWISE = {"calendars.used_by(namespaces)"}
"""Parameters of the scheduler that no route has."""
OTHER_DEFAULTS = {"sync(declarations)"}
"""In process it is what the decorators declared; a client's process may have declared nothing."""


@pytest.mark.parametrize(("near", "far"), FAR)
def test_a_client_has_the_operations_of_the_scheduler(near: type, far: type) -> None:
    instance = {"description", "schedule_id"}  # attributes that only an instance of the one or the other has
    assert attributes(near) - attributes(far) - instance == IN_PROCESS[near]
    assert attributes(far) - attributes(near) - instance == OVER_HTTP[near]


@pytest.mark.parametrize(("near", "far"), FAR)
def test_a_client_takes_the_parameters_of_the_scheduler_as_it_does(near: type, far: type) -> None:
    shared = operations(near).keys() & operations(far).keys()
    here, there = (
        {f"{path}({name})": one for path in shared for name, one in parameters(operations(kind)[path]).items()}
        for kind in (near, far)
    )
    lacking = {said for said in here.keys() - there.keys() if here[said].name not in NOT_OVER_HTTP}
    assert lacking - OTHERWISE == set()
    assert there.keys() - here.keys() <= OF_THE_CLIENT
    both = here.keys() & there.keys()
    assert {said for said in both if here[said].default != there[said].default} - OTHER_DEFAULTS == set()
    assert {said for said in both if here[said].kind != there[said].kind} == set()
    filters = {(here[said].annotation, there[said].annotation) for said in both if said.endswith("(filters)")}
    assert filters <= {(f"Unpack[{name}]", f"Unpack[{name}]") for name in ("ListFilters", "RunListFilters")}
