"""The runs of schedules, counted hour by hour, and in the columns of a timeline."""

from rqsched.features.hours.decide import A_DAY as A_DAY
from rqsched.features.hours.decide import HourKey as HourKey
from rqsched.features.hours.decide import Tally as Tally
from rqsched.features.hours.decide import day_of as day_of
from rqsched.features.hours.decide import hour_of as hour_of
from rqsched.features.hours.decide import instant_of_hour as instant_of_hour
from rqsched.features.hours.decide import quantile as quantile
from rqsched.features.hours.store import counts as counts
from rqsched.features.hours.store import read as read
from rqsched.features.hours.timeline import Columns as Columns
from rqsched.features.hours.timeline import Lot as Lot
from rqsched.features.hours.timeline import of_backfill as of_backfill
from rqsched.features.hours.timeline import read_columns as read_columns
