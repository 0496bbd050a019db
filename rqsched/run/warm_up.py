"""Warming up: before a process forks for runs, it does once the work that each work horse (fork) would do again.

Compiled statements, the server's dialect and the clock's offset save each horse 50 ms of CPU. The statements of a run
and of a target are executed for a run and a target that do not exist, so nothing is written.
"""

from __future__ import annotations

import gc
import inspect
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from rq.utils import import_attribute

from rqsched.kernel.chain.feature import Features
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import lifecycle
from rqsched.kernel.decide.define import define
from rqsched.kernel.decide.ids import new_uid
from rqsched.kernel.decide.lifecycle import Identity
from rqsched.kernel.decide.model import Run, RunKind, Schedule
from rqsched.kernel.decide.runs_on_request import Trigger, decide_trigger
from rqsched.kernel.decide.settle_decision import AttemptOutcome, AttemptResult, decide_settle
from rqsched.kernel.store import changes, claims
from rqsched.kernel.store.database import FAILURES, Connection, Patience
from rqsched.kernel.store.dialect import dialect_of
from rqsched.kernel.transport.transport import EXECUTE
from rqsched.when.members import Every

_log = logging.getLogger(__name__)

_ONCE = Patience(total=timedelta(0))
_THEN = datetime(2000, 1, 1, tzinfo=UTC)


def warm_up(runtime: Runtime) -> None:
    """Execute the statements of a run, close the connection, and let the garbage collector ignore existing objects.

    If the database is down or has another schema, each work horse does this work itself.
    """
    import_attribute(EXECUTE)  # RQ imports it by name, 2 ms in each work horse
    # Fill the isinstance caches that a horse's first log line and first result would fill. This saves each horse 0.5
    # ms.
    logging.LogRecord(__name__, logging.INFO, __file__, 0, "%s", ("a run",), None)
    inspect.isawaitable(None)
    try:
        runtime.database.transact(partial(_rehearse, runtime.features), patience=_ONCE)
        runtime.now()  # this measures the clock
    except FAILURES as error:
        _log.debug("not warmed up: %s", error, extra={"action": "not_warmed_up"})
    finally:
        runtime.database.close()
    gc.collect()
    gc.freeze()  # a collection in a horse would write to, and so copy, every page that the horse inherits


def _rehearse(features: Features, connection: Connection) -> None:
    schedule, run = _sample(_THEN)
    start = {"token": run.uid, "started_at": _THEN, "worker": "none"}
    claims.rehearse(connection, run.uid, start, features.claims_alone)
    changes.find_run(connection, run.uid)
    changes.find(connection, schedule.uid)
    for feature in features.listed:
        feature.rehearse(connection, run.uid, _THEN)
    # A first success, a later success and a success with a result each write other columns.
    for second, result in enumerate((None, "1"), start=1):
        success, now = AttemptResult(AttemptOutcome.SUCCEEDED, result=result), _THEN + timedelta(seconds=second)
        ended = decide_settle(schedule, [run], run, success, now=now)
        if dialect_of(connection).joins_writes:
            for sees in _sees_of(features, schedule, replace(run, limit_group=run.uid), success, now):
                changes.end_alone(connection, sees, change=ended, token=run.uid, version="0")
        changes.write(connection, [ended])
        schedule = ended.after


def _sees_of(
    features: Features, schedule: Schedule, run: Run, success: AttemptResult, now: datetime
) -> Iterable[changes.Sees]:
    """Return each distinct set of columns that features ask for at the end of a run of a group, and the empty set."""
    ended = decide_settle(schedule, [run], run, success, now=now)
    found = [changes.NOTHING, *(feature.sees(ended) for feature in features.listed)]
    return {sees.columns: sees for sees in found}.values()


def _sample(now: datetime) -> tuple[Schedule, Run]:
    """Return a schedule and a run that are stored nowhere."""
    definition = define(None, {}, workflow="none", spec=Every(timedelta(hours=1)), defaults={})
    schedule = lifecycle.decide_create(Identity(new_uid(now), "none", "none"), definition, now=now).after
    started, _ = decide_trigger(schedule, [], Trigger(new_uid(now)), now=now)
    return replace(started.after, operation=None), replace(started.new_runs[0], kind=RunKind.SCHEDULED)
