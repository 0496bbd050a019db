# ruff: noqa: ARG002 - a feature that overrides a point uses its arguments
"""The points at which a feature takes part in Changes, claims, attempts and passes. The kernel names no feature.

A feature is involved in a Change if one of its `columns` of the schedule differs from the default before or after the
Change, or if the settings of the process involve it. An ordinary schedule has the default in each of these columns, so
its fire calls no feature. `rqsched.features.list` has the features in the order in which they are called at each point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from enum import Enum, auto
from itertools import chain, repeat
from operator import ne
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from rq.job import Job

from rqsched.kernel.decide.ids import BatchJobId, DeliveryJobId, RunJobId, TargetJobId
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.decide.policy import Policies
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store.changes import NOTHING, Seen, Sees
from rqsched.kernel.store.claims import Condition
from rqsched.kernel.store.database import Connection
from rqsched.workflows import Workflow

Started: TypeAlias = tuple[Run, Schedule]
"""A run as it was claimed, and its schedule."""
Call: TypeAlias = Callable[[Callable[[], None]], Any]
"""Called instead of a workflow, with the attempt's checkpoint; its result is the result of the attempt."""


OwnJobId: TypeAlias = TargetJobId | BatchJobId | DeliveryJobId
"""The id of an RQ job that a feature performs. It is neither a link nor the job of a run."""


class Pass(NamedTuple):
    """A reconcile pass that begins."""

    is_full: bool
    """Whether the pass checks all rows, as after a flush of Redis, or only rows that are due soon or late."""
    fires_between: bool
    """Whether the process fires between two batches. If not, a long section pauses there, so that other processes can
    fire."""


class Stage(Enum):
    """The stages of a pass. In each stage, the kernel makes its repairs first, and then features make theirs."""

    TIMES = auto()
    """Repairs of schedules' next times, before links are armed for these times."""
    RUNS = auto()
    """Repairs of runs, and work that depends on ends of runs, after the kernel has delivered and ended runs."""
    REST = auto()
    """Long work that Redis does not need, after the pass has recorded that Redis is complete again."""
    HOUSEKEEPING = auto()
    """Deletions. They belong to no pass. A dispatcher makes them every quarter of an hour when it has nothing else to
    do."""


class Section(NamedTuple):
    """A repair that a feature adds to a pass, or its part of the housekeeping."""

    stage: Stage
    """The stage of the pass."""
    batches: Iterator[Recovered]
    """Repairs one batch of rows at each step, and yields its counts; a dispatcher fires between two steps."""


class Feature(Protocol):
    """A part of rqsched outside the kernel. It overrides the methods (points) in which it does something."""

    columns: ClassVar[Sequence[tuple[Callable[[Schedule], object], object]]] = ()
    """Columns of a schedule and their defaults. The feature is involved if a value differs from its default."""
    run_columns: ClassVar[Sequence[tuple[Callable[[Run], object], object]]] = ()
    """Columns of a run and their defaults, in the same way. A run may keep a value that its schedule no longer has."""
    options: ClassVar[Sequence[tuple[Callable[[Policies | Workflow], object], object]]] = ()
    """Options of a schedule's policies or of a workflow and their defaults, in the same way, but only for `call`."""
    is_always_involved: bool = False
    """Whether the settings of this process involve the feature in any case; fixed when the process starts."""
    writes_every_start: bool = False
    """Whether the settings of this process make the feature write with every claim. Then no claim is a single
    statement."""
    follows_first: ClassVar[bool] = False
    """Whether `follow` is called before the subscribers, which are the application's code and may be slow."""
    claims_alone: ClassVar[Condition | None] = None
    """The condition on a run and its schedule under which the feature writes nothing with a claim. None means that the
    feature never writes with a claim."""
    jobs: ClassVar[tuple[type[OwnJobId], ...]] = ()
    """The kinds of ids of the RQ jobs that the feature performs. Each kind belongs to one feature."""

    def require(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Raise an error to refuse an operation's decision, or write rows that the decision needs.

        Called once in each attempt at an operation's transaction, after the decision and before anything is written.
        All Changes are of one namespace.
        """
        return

    def before_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write rows that depend on rows as they were before the Changes, in the same transaction; may raise.

        Called once in each attempt at the transaction.
        """
        return

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write the feature's rows for Changes that have just been written, in the same transaction.

        Called once in each attempt at the transaction.
        """
        return

    def writes_more(self, change: Change) -> bool:
        """Return whether the feature writes with a Change, which then takes more than a single statement."""
        return False

    def sees(self, change: Change) -> Sees:
        """Return the columns that `follow` needs if a single statement ends a run. The statement returns their values.

        Only limits use this. A second statement would cost time at each end.
        """
        return NOTHING

    def enqueue(self, decided: Sequence[Change]) -> None:
        """Enqueue the jobs that committed Changes need; reconcile enqueues the rest in its next pass.

        Called after each commit when Redis follows. Not called if Redis refuses this process's database.
        """
        return

    def follow(self, changes: Sequence[Change], *, seen: Seen, skip_locked: bool) -> None:
        """Do what follows from committed Changes. If this fails, a pass of reconcile repeats it.

        Called at least once after each commit. With `skip_locked`, rows that another process has locked are left to a
        pass. `seen` is empty unless a single statement ended a run.
        """
        return

    def claimed(self, connection: Connection, started: Sequence[Started], *, at: datetime) -> Sequence[str]:
        """Write the feature's rows for started runs in the transaction of their claim; returns uids for `attempt`.

        Called once in each attempt at the transaction, but not for a claim that is a single statement.
        """
        return ()

    def unclaimed(self, run: Run, job: RunJobId, rq_job: Job | None) -> bool | None:
        """Handle a job whose run could not be claimed; returns whether to claim the run again now.

        Returns None if the job does not concern this feature. All features are called in turn until one returns a bool,
        also features that are not involved, because the row of a run does not show that a person requeued its job.
        Called at most once for a job. An error fails the job.
        """
        return None

    def call(self, schedule: Schedule, run: Run, workflow: Workflow) -> Call | None:
        """Return what a claimed attempt calls instead of its workflow; None for the workflow.

        Called once for each attempt whose workflow is found, before the attempt begins. A WorkflowNotFoundError gives
        the run back, for a worker that has the code. Any other error fails the attempt. Only fan-out uses this: it
        calls the function that returns the targets.
        """
        return None

    def attempt(self, schedule: Schedule, run: Run, owed: Sequence[str]) -> AbstractContextManager[object]:
        """Return a context manager around a claimed attempt; `owed` is what `claimed` returned."""
        return nullcontext()

    def sections(self, begun: Pass) -> Sequence[Section]:
        """Return the repairs of a reconcile pass, in their order, and the steps of housekeeping.

        Called once in each pass, before the first batch, and once in each housekeeping. This call reads and writes
        nothing. A batch may raise: the pass logs the error and goes on with the next section. Only a
        BackendUnavailableError ends the pass.
        """
        return ()

    def delivered(self, link: str, run: Run, *, is_published: bool) -> datetime | None:
        """Do the feature's part for a retry link of a run, after the commit; returns when the link is due again.

        Returns None if the link has done its work. `is_published` says whether the link had a Change to publish. May
        raise like a fire.
        """
        return None

    # The following methods are not such points. A worker calls them for the feature's own jobs and statements.

    def perform(self, job: OwnJobId) -> bool:
        """Perform a job of one of the `jobs`; returns False if there was nothing to do.

        An error fails the job. If the database lacks the job's row, this returns False if such rows are deleted when
        their work is done, else it raises UnknownJobError.
        """
        return False

    def lose(self, job: OwnJobId, reason: str, *, token: str | None, is_final: bool) -> None:
        """End a job of the feature after the job's process died.

        With a `token`, only a claim under that token is ended. `is_final` means that a person stopped the job. Only
        fan-out uses this. The delivery of a notification needs no end, because it is repeated when its lease is over.
        """
        return

    def rehearse(self, connection: Connection, uid: str, now: datetime) -> None:
        """Execute the statements of an attempt and its end, so that they are compiled; no run has this `uid`."""
        return


class Features:
    """The features of one process."""

    def __init__(self, listed: Sequence[Feature]) -> None:
        self.listed = listed
        """All features, in their order."""
        self._may_be_involved = [
            one for one in listed if one.columns or one.run_columns or one.options or one.is_always_involved
        ]
        conditions = tuple(feature.claims_alone for feature in listed if feature.claims_alone is not None)
        self.claims_alone = None if any(feature.writes_every_start for feature in listed) else conditions
        """The conditions under which a claim may be a single statement; None if it never may."""

    def involved_in(self, changes: Sequence[Change]) -> list[Feature]:
        """Return the features that are involved in the rows of these Changes, before or after a Change."""
        runs = [run for change in changes for run in chain(change.new_runs, *change.changed_runs)]
        return self.involved([one for change in changes for one in (change.before, change.after)], runs)

    def involved(
        self, schedules: Iterable[Schedule | None], runs: Sequence[Run], said: Sequence[Policies | Workflow] = ()
    ) -> list[Feature]:
        """Return the features that a schedule, a run or an option of `said` involves."""
        # A batch compares thousands of values. `map` calls no function of ours for each.
        distinct = [schedule for schedule in schedules if schedule is not None]
        return [
            feature
            for feature in self._may_be_involved
            if feature.is_always_involved
            or any(any(map(ne, map(column, distinct), repeat(default))) for column, default in feature.columns)
            or any(any(map(ne, map(column, runs), repeat(default))) for column, default in feature.run_columns)
            or any(any(map(ne, map(option, said), repeat(default))) for option, default in feature.options)
        ]

    def owner_of(self, job: OwnJobId) -> Feature:
        """Return the feature that performs a job."""
        return next(feature for feature in self.listed if isinstance(job, feature.jobs))

    def sections(self, begun: Pass) -> dict[Stage, list[Iterator[Recovered]]]:
        """Return the sections of a pass, by stage."""
        found: dict[Stage, list[Iterator[Recovered]]] = {stage: [] for stage in Stage}
        for feature in self.listed:
            for section in feature.sections(begun):
                found[section.stage].append(section.batches)
        return found
