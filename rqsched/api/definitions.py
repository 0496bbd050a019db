"""The definition of a schedule: its creation by a request, and the defaults that are not in the table of options."""

from __future__ import annotations

from rqsched.kernel.chain import create
from rqsched.kernel.chain.create import Named as Named
from rqsched.kernel.chain.create import ScheduleRequest as ScheduleRequest
from rqsched.kernel.chain.option_checks import define_new as define_new
from rqsched.kernel.chain.option_checks import new_definition as new_definition
from rqsched.kernel.chain.option_checks import redefine as redefine
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.define import dies_by_default as dies_by_default
from rqsched.kernel.decide.define import value_of as value_of
from rqsched.kernel.decide.lifecycle import MAX_SKIPS as MAX_SKIPS
from rqsched.kernel.decide.lifecycle import registered as registered
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.store import idempotency


def create_once(runtime: Runtime, asked: ScheduleRequest) -> tuple[Schedule, str | None]:
    """Create a schedule; also return the stored answer for the request's idempotency key, or None without a key.

    A request that repeats a key creates nothing: it gets the schedule and the answer of the first request.
    """
    schedule = create.create(runtime, asked)
    if (key := asked.key) is None:
        return schedule, None
    read = runtime.database.read
    return schedule, read(lambda c: idempotency.answer_of(c, asked.named.namespace, key, schedule.uid))
