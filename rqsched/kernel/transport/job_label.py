"""The label that RQ's own tools show for the job of a run or a target: names, never arguments.

A label decides nothing. A job without a label is executed in the same way, because the job's id names the run.
"""

from __future__ import annotations

import re
import zlib
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from rqsched.kernel.decide.ids import iso_utc

WORKFLOW = "rqsched.jobs.workflow"
"""The prefix of the function names of run and target jobs. The module `rqsched.jobs` has a function for every name with
this prefix."""
DATABASE = "database"
"""The key in a job's meta for the id of the database that the job belongs to."""
SERVER = "server"
"""The key in a job's meta for the identity of that database's server."""
_UNFIT = re.compile(r"[^\w.:-]|^\.|\.$|(?<=\.)\.")


class JobLabel(NamedTuple):
    """The label of one job: its schedule, its workflow and its nominal time."""

    workflow: str
    """The workflow that the job executes."""
    run: str
    """The uid of the run."""
    schedule: str | None = None
    """The id of the schedule; None for a fan-out that was started by hand."""
    namespace: str | None = None
    """The namespace that holds the schedule."""
    occurrence: datetime | None = None
    """The nominal time of the run."""
    attempt: int | None = None
    """The number of the run's attempt."""
    traceparent: str | None = None
    """The span of the request for the run. The field has the name that instrumentations of RQ look for."""

    @property
    def description(self) -> str:
        """The line that lists and logs show."""
        return self.workflow if self.schedule is None else f"{self.schedule}: {self.workflow}"

    def meta(self, database: str | None, server: str | None = None) -> dict[str, Any]:
        """Return the values that programs read (`job.meta`), without values that are None."""
        known = {
            "schedule": self.schedule,
            "namespace": self.namespace,
            "occurrence": None if self.occurrence is None else iso_utc(self.occurrence),
            "attempt": self.attempt,
            "run": self.run,
            "traceparent": self.traceparent,
            DATABASE: database,
            SERVER: server,
        }
        return {name: value for name, value in known.items() if value is not None}


@lru_cache(maxsize=1024)
def function_of(workflow: str) -> str:
    """Return the dotted path that a workflow's jobs name as their function.

    Letters, digits, `_`, `-`, `:` and single inner dots stay. Every other character is written as the bytes of its
    UTF-8, `%XX` each. So different names stay different, and no name breaks a line of a log.
    """
    return f"{WORKFLOW}." + _UNFIT.sub(
        lambda unfit: "".join(f"%{byte:02X}" for byte in unfit[0].encode("utf-8", "surrogatepass")), workflow
    )


@lru_cache(maxsize=1024)
def call_of(function: str, serializer: Any) -> bytes:
    """Return a call without arguments in RQ's format."""
    return zlib.compress(serializer.dumps((function, None, [], {})), 9)
