"""Audit events as surfaces read them. Each function takes an open transaction."""

from rqsched.kernel.queries.events import MOST_LOOKED_AT as MOST_LOOKED_AT
from rqsched.kernel.queries.events import SETTLING as SETTLING
from rqsched.kernel.queries.events import AskedFilters as AskedFilters
from rqsched.kernel.queries.events import FoundEvent as FoundEvent
from rqsched.kernel.queries.events import Position as Position
from rqsched.kernel.queries.events import RecordedEvent as RecordedEvent
from rqsched.kernel.queries.events import edits_after as edits_after
from rqsched.kernel.queries.events import events_of_run as events_of_run
from rqsched.kernel.queries.events import history as history
from rqsched.kernel.queries.events import newest_events as newest_events
from rqsched.kernel.queries.events import newest_skips as newest_skips
from rqsched.kernel.queries.events import newest_stops as newest_stops
from rqsched.kernel.queries.events import position_before as position_before
from rqsched.kernel.queries.events import read_after as read_after
from rqsched.kernel.queries.events import read_position as read_position
from rqsched.kernel.queries.events import read_recorded as read_recorded
from rqsched.kernel.queries.events import search_asked as search_asked
from rqsched.kernel.queries.events import skips_since as skips_since
