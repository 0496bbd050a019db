"""The creation of a schedule by a request, which is answered once for each idempotency key."""

from __future__ import annotations

from rqsched.kernel.chain import create
from rqsched.kernel.chain.create import Named as Named
from rqsched.kernel.chain.create import ScheduleRequest as ScheduleRequest
from rqsched.kernel.chain.option_checks import define_new as define_new
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.model import Schedule
from rqsched.kernel.store import idempotency


def create_once(runtime: Runtime, asked: ScheduleRequest) -> tuple[Schedule, str | None]:
    """Create a schedule; also return the answer that is kept under the key of the request, None without a key.

    A request that repeats a key creates nothing: it gets the schedule and the answer of the first one.
    """
    schedule = create.create(runtime, asked)
    if (key := asked.key) is None:
        return schedule, None
    read = runtime.database.read
    return schedule, read(lambda c: idempotency.answer_of(c, asked.named.namespace, key, schedule.uid))
