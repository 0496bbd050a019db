"""The fires of all schedules, minute by minute."""

from rqsched.simulate.load import MOST_HOURS as MOST_HOURS
from rqsched.simulate.load import Window as Window
from rqsched.simulate.load import read_load as read_load
