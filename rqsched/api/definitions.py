"""The checks and defaults of a schedule's options that the table of options does not have."""

from rqsched.kernel.decide.lifecycle import MAX_SKIPS as MAX_SKIPS
from rqsched.kernel.decide.lifecycle import with_clocks as with_clocks
from rqsched.kernel.decide.schedule_options import dies_by_default as dies_by_default
from rqsched.kernel.decide.schedule_options import value_of as value_of
