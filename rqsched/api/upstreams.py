"""The schedules and runs before and after, of schedules that start after each other."""

from rqsched.features.after.store import after as after
from rqsched.features.after.store import before as before
from rqsched.features.after.store import downstream_of as downstream_of
