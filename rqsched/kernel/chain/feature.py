# ruff: noqa: ARG002 - a feature that overrides a point uses its arguments
"""The points at which a feature takes part in what happens with a Change and with a claim. The kernel names no feature.

A feature says by data when it is involved: by columns of the schedule that differ from their defaults before or after
the Change, or by the settings of the process. An ordinary schedule has the default in each column, so its fire enters
no file of a feature. `rqsched.features.list` has all of them; their order there is their order at each point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from enum import Enum, auto
from itertools import chain
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
"""Called instead of a workflow, with the attempt's checkpoint; its result is the attempt's."""


OwnJobId: TypeAlias = TargetJobId | BatchJobId | DeliveryJobId
"""The id of an RQ job that is neither a link nor the job of a run: a feature performs it."""


class Pass(NamedTuple):
    """A reconcile pass that begins."""

    is_full: bool
    """Whether it looks at everything, as after a flush of Redis, and not only at what is due soon or late."""
    fires_between: bool
    """Whether its process fires between two batches; otherwise a long section pauses there, so that others can fire."""


class Stage(Enum):
    """The stages of a pass. In each, the kernel makes its repairs first, and then features make theirs."""

    TIMES = auto()
    """Next times: before links are armed for them."""
    RUNS = auto()
    """Runs and what depends on their ends: once the kernel has delivered and ended what it finds."""
    REST = auto()
    """Long work that Redis does not depend on: after the pass has recorded that Redis holds everything again."""
    HOUSEKEEPING = auto()
    """Deletions: in no pass, but every quarter of an hour, while a dispatcher has nothing to fire and to repair."""


class Section(NamedTuple):
    """A repair that a feature adds to a pass, or its part of the housekeeping."""

    stage: Stage
    """When it is made."""
    batches: Iterator[Recovered]
    """Repairs a batch of rows each time its next counts are asked for; a dispatcher fires in between."""


class Feature(Protocol):
    """A part of rqsched beside the kernel. It overrides the points at which it does something."""

    columns: ClassVar[Sequence[tuple[Callable[[Schedule], object], object]]] = ()
    """Columns of a schedule and their defaults: the feature is involved where one of them differs."""
    run_columns: ClassVar[Sequence[tuple[Callable[[Run], object], object]]] = ()
    """Columns of a run and their defaults, likewise: a run may keep what its schedule has lost."""
    options: ClassVar[Sequence[tuple[Callable[[Policies | Workflow], object], object]]] = ()
    """Options of a schedule's policies or of a workflow and their defaults, likewise, for `call` alone."""
    is_always_involved: bool = False
    """Whether the settings of this process involve it whatever the columns say; fixed when the process starts."""
    writes_every_start: bool = False
    """Whether the settings of this process let it write with every claim, which is then no single statement."""
    follows_first: ClassVar[bool] = False
    """Whether it follows before subscribers hear of the events: they are the application's code, and may be slow."""
    claims_alone: ClassVar[Condition | None] = None
    """The condition on a run and its schedule under which it writes nothing with their claim; None is any."""
    jobs: ClassVar[tuple[type[OwnJobId], ...]] = ()
    """The kinds of ids of its own RQ jobs, which it performs; each kind belongs to one feature."""

    def require(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Refuse what operations decided, or write the rows that it is the first to name; raises what callers get.

        Called once in each attempt at an operation's transaction, after the decision and before anything is written.
        The Changes are of one namespace.
        """
        return

    def before_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write what needs rows as they are before Changes are written, in the same transaction; may raise.

        Called once in each attempt at the transaction.
        """
        return

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Write what belongs to Changes that have just been written, in the same transaction; called as above."""
        return

    def writes_more(self, change: Change) -> bool:
        """Return whether it writes with a Change, which is then not written by a single statement."""
        return False

    def sees(self, change: Change) -> Sees:
        """Return columns that the single statement which ends a run reads too, and `follow` gets.

        Only limits use it. It is a point because the statement is the kernel's, and a second one would cost each end.
        """
        return NOTHING

    def enqueue(self, decided: Sequence[Change]) -> None:
        """Put on queues what was written with committed Changes; reconcile enqueues the rest in its next pass.

        Called after each commit once Redis has followed, and so not where Redis refuses this process's database.
        """
        return

    def follow(self, changes: Sequence[Change], *, seen: Seen, skip_locked: bool) -> None:
        """Do what follows from committed Changes; raises nothing, for a pass of reconcile repeats it.

        Called at least once after each commit. With `skip_locked`, rows that another process holds are left to a pass.
        `seen` is empty unless a single statement ended a run.
        """
        return

    def claimed(self, connection: Connection, started: Sequence[Started], *, at: datetime) -> Sequence[str]:
        """Write what the starts of runs owe, in the transaction of their claim; returns the uids for `attempt`.

        Called once in each attempt at that transaction, and not for a claim that is a single statement.
        """
        return ()

    def unclaimed(self, run: Run, job: RunJobId, rq_job: Job | None) -> bool | None:
        """Do something about a job whose run could not be claimed: return whether it is to be claimed again now.

        None if the job is none of its business. Every feature is asked in turn until one answers, for the row of the
        run does not show that a person requeued its job. Called at most once for a job; may raise, which fails the job.
        """
        return None

    def call(self, schedule: Schedule, run: Run, workflow: Workflow) -> Call | None:
        """Return what a claimed attempt calls instead of its workflow; None for the workflow.

        Called once for each attempt whose workflow is found, before the attempt begins. A WorkflowNotFoundError gives
        the run back, for a worker that has the code; any other error fails the attempt. Only fan-out uses it: its
        function that names targets takes the workflow's place, and must be found at the same moment as the workflow.
        """
        return None

    def attempt(self, schedule: Schedule, run: Run, owed: Sequence[str]) -> AbstractContextManager[object]:
        """Return what surrounds a claimed attempt; `owed` is what `claimed` returned."""
        return nullcontext()

    def sections(self, begun: Pass) -> Sequence[Section]:
        """Return the repairs of a reconcile pass, in their order, and the steps of housekeeping.

        Called once in each pass, before its first batch, and once in each housekeeping. Reads and writes nothing
        itself. A batch may raise: the pass logs this and goes on with the next section. Only BackendUnavailableError
        ends the pass.
        """
        return ()

    def delivered(self, link: str, run: Run, *, is_published: bool) -> datetime | None:
        """Do what else a retry link of a run stands for, after the commit; returns when the link is due again.

        None if the link has done its work. `is_published` says that the link had a Change. May raise as a fire does.
        """
        return None

    # Not points of the protocol: what a worker needs for the feature's own jobs and statements.

    def perform(self, job: OwnJobId) -> bool:
        """Perform a job of one of its `jobs`; returns False if there was nothing to do, and perhaps no row.

        An error fails the job. Raises UnknownJobError if this database surely has no such row.
        """
        return False

    def lose(self, job: OwnJobId, reason: str, *, token: str | None, is_final: bool) -> None:
        """End a job of its own after its process died.

        With a `token`, only a claim under that token is ended. With `is_final` a person stopped the job. Only fan-out
        uses it: a delivery is made again when its lease is over.
        """
        return

    def rehearse(self, connection: Connection, uid: str, now: datetime) -> None:
        """Execute the statements of an attempt and its end for a `uid` of nothing, so that they are compiled."""
        return


class Features:
    """The features of one process."""

    def __init__(self, listed: Sequence[Feature]) -> None:
        self.listed = listed
        """All of them, in their order."""
        self._may_be_involved = [
            one for one in listed if one.columns or one.run_columns or one.options or one.is_always_involved
        ]
        conditions = tuple(feature.claims_alone for feature in listed if feature.claims_alone is not None)
        self.claims_alone = None if any(feature.writes_every_start for feature in listed) else conditions
        """The conditions under which a claim may be a single statement; None where it may not."""

    def involved_in(self, changes: Sequence[Change]) -> list[Feature]:
        """Return the features that are involved in one of these Changes, by its rows before or after it."""
        runs = [run for change in changes for run in chain(change.new_runs, *change.changed_runs)]
        return self.involved([one for change in changes for one in (change.before, change.after)], runs)

    def involved(
        self, schedules: Iterable[Schedule | None], runs: Sequence[Run], said: Sequence[Policies | Workflow] = ()
    ) -> list[Feature]:
        """Return the features that are involved in a schedule or a run, or that an option of `said` involves."""
        distinct = [schedule for schedule in schedules if schedule is not None]
        return [
            feature
            for feature in self._may_be_involved
            if feature.is_always_involved
            or any(column(schedule) != default for column, default in feature.columns for schedule in distinct)
            or any(column(run) != default for column, default in feature.run_columns for run in runs)
            or any(option(one) != default for option, default in feature.options for one in said)
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
