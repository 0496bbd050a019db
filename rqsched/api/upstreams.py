"""The upstream and downstream schedules of a schedule, and the runs that started each other."""

from rqsched.features.after.store import after as after
from rqsched.features.after.store import before as before
from rqsched.features.after.store import downstream_of as downstream_of
