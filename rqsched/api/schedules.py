"""Schedules as surfaces read them. Each function takes an open transaction."""

from rqsched.kernel.queries.schedules import MOST_LOOKED_AT as MOST_LOOKED_AT
from rqsched.kernel.queries.schedules import Filters as Filters
from rqsched.kernel.queries.schedules import Found as Found
from rqsched.kernel.queries.schedules import Position as Position
from rqsched.kernel.queries.schedules import count_by_status as count_by_status
from rqsched.kernel.queries.schedules import count_late as count_late
from rqsched.kernel.queries.schedules import count_schedules as count_schedules
from rqsched.kernel.queries.schedules import fill_page as fill_page
from rqsched.kernel.queries.schedules import ids as ids
from rqsched.kernel.queries.schedules import list_schedules as list_schedules
from rqsched.kernel.queries.schedules import namespaces as namespaces
from rqsched.kernel.queries.schedules import search_schedules as search_schedules
from rqsched.kernel.queries.schedules import soonest as soonest
from rqsched.kernel.store.changes import find_named as find_named
