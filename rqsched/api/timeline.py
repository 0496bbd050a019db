"""The runs of many schedules in the columns of a picture."""

from rqsched.features.hours.timeline import Columns as Columns
from rqsched.features.hours.timeline import Lot as Lot
from rqsched.features.hours.timeline import of_backfill as of_backfill
from rqsched.features.hours.timeline import read as read
