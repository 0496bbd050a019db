"""Checks and defaults of a schedule's options that are not in the table of options."""

from rqsched.kernel.decide.define import dies_by_default as dies_by_default
from rqsched.kernel.decide.define import value_of as value_of
from rqsched.kernel.decide.lifecycle import MAX_SKIPS as MAX_SKIPS
from rqsched.kernel.decide.lifecycle import with_clocks as with_clocks
