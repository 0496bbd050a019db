"""Hours: count ended runs by hour, for schedules that have new runs, one schedule at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter

from rqsched.errors import BackendUnavailableError
from rqsched.features.hours import store as run_hours
from rqsched.kernel.chain.feature import Feature, Pass, Section, Stage
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.ids import first_uid_at
from rqsched.kernel.decide.model import Change
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.store import metadata
from rqsched.kernel.store.database import Connection

_log = logging.getLogger(__name__)

MOST_STEPS = 100
"""The maximum number of transactions of one pass. A million runs of an older database are counted in some minutes."""
_LOOK = 5_000
"""The maximum number of runs that one step examines."""
_SETTLED = timedelta(minutes=1)
"""The least age of the runs that a step examines, because some younger runs may not be committed yet."""
_LOOKED_TO = "hours_looked_to"
"""The name of the stored value with the uid of the last examined run."""


class Hours(Feature):
    """Count runs by the hour of their end."""

    run_columns = ((attrgetter("asked_attempt"), None),)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def after_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        """If a run starts again, subtract it from the counts of the hour in which it had ended."""
        run_hours.take_out(connection, changes)

    def sections(self, begun: Pass) -> Sequence[Section]:  # noqa: ARG002 - every pass counts the same
        """Count the runs that have ended."""
        return [Section(Stage.REST, count_ended(self._runtime))]


def count_ended(runtime: Runtime) -> Iterator[Recovered]:
    """Count the ended runs of schedules with new runs since the last pass. If there are many, the next pass continues.

    A run that cannot be counted now is counted with later runs of its schedule, or before it is pruned.
    """
    until = first_uid_at(runtime.now() - _SETTLED)
    steps = 0
    while steps < MOST_STEPS:
        found = runtime.database.read(
            lambda connection: run_hours.milestones(
                connection, metadata.find_value(connection, _LOOKED_TO) or "", until, _LOOK
            )
        )
        yield Recovered(checked=found.runs)
        for uid in found.schedule_uids:
            while (counted := _count(runtime, uid)) is not None:
                steps += 1
                yield Recovered(checked=counted.runs)
                if not counted.is_more:
                    break
                if steps >= MOST_STEPS:
                    return
        if found.last is None or (found.runs < _LOOK and not found.schedule_uids):
            return  # too few runs; the next pass examines them again
        runtime.database.transact(partial(metadata.set_value, name=_LOOKED_TO, value=found.last))
        steps += 1


def _count(runtime: Runtime, uid: str) -> run_hours.Counted | None:
    try:
        return runtime.database.transact(partial(run_hours.count_some, schedule_uid=uid, skip_locked=True))
    except BackendUnavailableError:
        raise
    except Exception:  # noqa: BLE001 - one failing schedule must not stop the others
        _log.exception("the runs of schedule %s cannot be counted now", uid, extra={"action": "count_failed"})
        return None
