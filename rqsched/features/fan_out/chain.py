"""Connect fan-outs to the kernel: a run names targets instead of calling its workflow, and ends after the last target.

A pass of reconcile puts due targets without a job on their queues, ends the attempts of targets whose process died, and
ends runs without open targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter

from rqsched.features.fan_out import store as fan_out_targets
from rqsched.features.fan_out.decide import TargetEnd, decide_blocked
from rqsched.features.fan_out.dispatch import PAGE, dispatch, fill, find_resolver, name_targets, promote
from rqsched.features.fan_out.execution import decide_lost, execute, lose
from rqsched.features.fan_out.jobs import batch_job, enqueue
from rqsched.features.fan_out.run_end import end_if_over, is_dispatched, try_to_end
from rqsched.features.fan_out.store import EndStep, Target
from rqsched.kernel.chain.feature import Call, Feature, OwnJobId, Pass, Section, Stage
from rqsched.kernel.chain.reconcile.repair import pages, repair_each
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import BatchJobId, TargetJobId
from rqsched.kernel.decide.model import Change, Run, Schedule
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.queries import reconcile as reconcile_queries
from rqsched.kernel.store.changes import Seen
from rqsched.kernel.store.database import Connection
from rqsched.workflows import Workflow

_LOST_AFTER = timedelta(seconds=60)
"""How long after its deadline a target may record its end. After this time, plus `completion_outage`, the target
counts as lost."""
LOST = "its process vanished: it neither ended nor ran out of time"
"""The error of a target whose deadline passed without a result."""


class FanOut(Feature):
    """The targets of runs: a run with targets calls the function that names them, and ends after the last target."""

    run_columns = ((attrgetter("dispatched_at"), None),)
    options = ((attrgetter("targets"), None),)
    jobs = (TargetJobId, BatchJobId)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def call(self, schedule: Schedule, run: Run, workflow: Workflow) -> Call | None:
        """Return a call of the function that names the run's targets; None if schedule and workflow have none."""
        targets = schedule.policies.targets or workflow.targets
        if targets is None:
            return None
        return partial(name_targets, self._runtime, run, find_resolver(self._runtime, workflow, targets))

    def follow(self, changes: Sequence[Change], *, seen: Seen, skip_locked: bool) -> None:  # noqa: ARG002 - an end sees no state of targets
        """End runs whose last target ended before their workflow returned."""
        for before, after in chain.from_iterable(change.changed_runs for change in changes):
            # If both are the same object, an earlier commit is followed again, because the answer of the commit was
            # lost, or the process that committed has died.
            if is_dispatched(after) and (before.dispatched_at is None or before is after):
                try_to_end(self._runtime, after.uid, skip_locked=skip_locked)

    def delivered(self, link: str, run: Run, *, is_published: bool) -> datetime | None:  # noqa: ARG002 - any link does
        """Make the due targets of a run pending again. Return when the link is due for the next target."""
        if not is_dispatched(run):
            return None
        promote(self._runtime, run.uid)
        return self._runtime.database.read(partial(fan_out_targets.next_promotion, run_uid=run.uid))

    def sections(self, begun: Pass) -> Sequence[Section]:
        """Repair targets and their runs."""
        return [Section(Stage.RUNS, repair_targets(self._runtime, is_full=begun.is_full))]

    def perform(self, job: OwnJobId) -> bool:
        """Handle a target, or dispatch the next targets of a run."""
        if isinstance(job, TargetJobId):
            execute(self._runtime, job)
        elif isinstance(job, BatchJobId):
            dispatch(self._runtime, job)
        return True

    def lose(self, job: OwnJobId, reason: str, *, token: str | None, is_final: bool) -> None:
        """End the attempt of a target. If the job dispatches targets, a pass of reconcile enqueues it again."""
        if isinstance(job, TargetJobId):
            lose(self._runtime, job, reason, token=token, is_final=is_final)

    def rehearse(self, connection: Connection, uid: str, now: datetime) -> None:
        """Execute the statements of a target's claim and end."""
        fan_out_targets.rehearse(connection, uid, now)


def repair_targets(runtime: Runtime, *, is_full: bool) -> Iterator[Recovered]:
    """Enqueue lost jobs of fan-outs, fail targets whose process died, and end runs without open targets."""
    now = runtime.now()
    before = now if is_full else now - runtime.settings.repair_grace
    for end in (_end_lost, _end_blocked):
        while True:
            ended = len(runtime.database.transact(partial(end, runtime)))
            yield Recovered(checked=ended, targets=ended)
            if ended < PAGE:
                break
    given_up = runtime.database.transact(lambda connection: fan_out_targets.give_up(connection, runtime.now()))
    yield Recovered(checked=given_up, targets=given_up)
    while promoted := promote(runtime):
        yield Recovered(checked=promoted, targets=promoted)
        if promoted < PAGE:
            break
    unfinished = runtime.database.read(lambda connection: fan_out_targets.unfinished_batches(connection, before))
    for job, first in unfinished:
        yield Recovered(checked=1, targets=_continue(runtime, job, first))
    for rows in pages(runtime, partial(fan_out_targets.pending, before=before)):
        yield Recovered(checked=len(rows), targets=enqueue(runtime, rows))
    for uids in pages(runtime, reconcile_queries.dispatched):
        repairs = {uid: partial(end_if_over, runtime, uid, skip_locked=True) for uid in uids}
        ended, failed = repair_each(repairs, "the fan-out of run %s cannot be ended now")
        yield Recovered(checked=len(uids), targets=ended, failed=failed)


def _end_lost(runtime: Runtime, connection: Connection) -> list[str]:
    now = runtime.now()
    silent_since = now - runtime.settings.completion_outage - _LOST_AFTER
    step = EndStep(lambda connection, target: decide_lost(connection, target, LOST, now), now, PAGE)
    return fan_out_targets.end_silent(connection, silent_since, step)


def _end_blocked(runtime: Runtime, connection: Connection) -> list[str]:
    now, timeout = runtime.now(), runtime.settings.blocked_timeout

    def decide(connection: Connection, target: Target) -> TargetEnd:
        reason = fan_out_targets.read_error(connection, target.uid) or ""
        return decide_blocked(target.blocked_at, reason, now=now, timeout=timeout)

    return fan_out_targets.end_blocked(connection, now - timeout, EndStep(decide, now, PAGE))


def _continue(runtime: Runtime, job: BatchJobId, first: Target) -> int:
    """Enqueue the next targets of a run. Without `max_parallel`, enqueue the job that dispatches these targets."""
    if first.max_parallel is not None:
        return fill(runtime, job.run_uid)
    return runtime.transport.enqueue([batch_job(job)], first.queue, first.connection, now=runtime.now())
