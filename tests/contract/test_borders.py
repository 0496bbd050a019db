"""The borders of the kernel, of `when`, of features and of surfaces.

The kernel imports no feature, `when` imports neither, and a feature says which others it needs. Surfaces import neither
the kernel nor features: they call `api`, and find the parts that features add to them through `features.list`.
"""

from __future__ import annotations

from tests.contract.sources import Import
from tests.contract.test_layers import own_imports

OF_OTHERS = {
    ("backfill", "bulk"): "the stop of a backfill cancels its runs, as many as there are",
    ("backfill", "retry_on_request"): "a backfill that is asked to retries the failed runs it finds",
    ("bulk", "retry_on_request"): "a retry of many runs retries each of them on request",
    ("declarations", "after"): "a sync orders what it creates: an upstream comes first",
    ("declarations", "quotas"): "a sync that creates and removes is checked as a whole",
    ("external", "limits"): "a worker that fetches a run asks for the place of its group",
    ("external", "notifications"): "the start of a run that a worker fetched is notified",
    ("fan_out", "limits"): "targets take places of their run's group",
    ("freeze", "after"): "a thaw lets downstream schedules follow the ends that the freeze kept back",
    ("limits", "fan_out"): "a place that is given to a target is the target's row",
    ("namespaces", "bulk"): "the text of a stop cancels as many runs as the page for many runs takes",
    ("namespaces", "quotas"): "the operations on a namespace show its usage and its quota",
    ("pruning", "hours"): "runs are counted in their hours before they are deleted",
    ("retry_on_request", "fan_out"): "a retry of a fan-out may run its failed targets only",
}
"""(feature, feature that it imports): why. The others stand alone."""
SURFACES = ("client", "metrics", "ojs", "durable_workflow", "http", "cli", "dashboard")
BEHIND_API = ("kernel", "features", "run", "simulate", "importers")
"""What surfaces reach through `api` only."""
BESIDE_API = {
    ("cli", "features.declarations.schedule_file"): "`rqsched import` writes the file that `rqsched sync` reads",
    ("cli", "importers"): "`rqsched import` is its only user",
    ("cli", "run"): "commands start the processes of a machine, and ask them",
    ("http", "run"): "`rqsched web` supervises its processes",
}
"""(surface, module or folder that it imports): why."""


def feature_of(module: str) -> str | None:
    """Return the feature that a module belongs to; `list` belongs to none."""
    _, *parts = module.split(".")
    return parts[1] if parts[:1] == ["features"] and len(parts) > 1 and parts[1] != "list" else None


def crossing() -> list[tuple[Import, str | None, str | None]]:
    found = [(i, feature_of(i.source), feature_of(i.target)) for i in own_imports()]
    return [(i, source, target) for i, source, target in found if source != target]


def test_the_kernel_imports_no_feature() -> None:
    wrong = [f"{i.source} imports {i.target}" for i in own_imports() if i.source.startswith("rqsched.kernel")]
    assert [one for one in wrong if " rqsched.features" in one] == []


def test_when_imports_neither_the_kernel_nor_a_feature() -> None:
    wrong = [i for i in own_imports() if i.source.startswith("rqsched.when")]
    assert [i for i in wrong if i.target.startswith(("rqsched.kernel", "rqsched.features"))] == []


def test_a_feature_imports_another_one_only_for_a_reason_that_is_written_here() -> None:
    found = {(source, target) for i, source, target in crossing() if source and target}
    assert found == set(OF_OTHERS)


def test_the_list_finds_each_feature_in_its_file_of_the_protocol() -> None:
    listed = {i.target for i in own_imports() if i.source == "rqsched.features.list" and feature_of(i.target)}
    assert {target.rpartition(".")[2] for target in listed} == {"chain"}


def test_surfaces_import_what_is_behind_api_only_for_a_reason_that_is_written_here() -> None:
    found = {
        (i.source.split(".")[1], i.target.removeprefix("rqsched.")) for i in own_imports() if i.source != "rqsched"
    }
    crossing = {(source, target) for source, target in found if source in SURFACES and _is_behind_api(target)}
    allowed = {(s, t, beside) for s, t in crossing for beside in BESIDE_API if s == beside[0] and _is_in(t, beside[1])}
    assert crossing - {(source, target) for source, target, _ in allowed} == set()
    assert {beside for _, _, beside in allowed} == set(BESIDE_API)


def _is_behind_api(target: str) -> bool:
    return target.split(".")[0] in BEHIND_API and target != "features.list"


def _is_in(target: str, folder: str) -> bool:
    return f"{target}.".startswith(f"{folder}.")
