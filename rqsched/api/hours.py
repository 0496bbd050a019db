"""The runs of a schedule, counted hour by hour."""

from rqsched.features.hours.decide import A_DAY as A_DAY
from rqsched.features.hours.decide import HourKey as HourKey
from rqsched.features.hours.decide import Tally as Tally
from rqsched.features.hours.decide import day_of as day_of
from rqsched.features.hours.decide import hour_of as hour_of
from rqsched.features.hours.decide import instant_of_hour as instant_of_hour
from rqsched.features.hours.decide import quantile as quantile
from rqsched.features.hours.store import counts as counts
from rqsched.features.hours.store import read as read
