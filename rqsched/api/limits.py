"""Groups of runs: the busiest groups, and texts about a run that waits for a place."""

from rqsched.features.limits.chain import told_of_line as told_of_line
from rqsched.features.limits.chain import told_of_targets as told_of_targets
from rqsched.features.limits.store import busiest as busiest
from rqsched.kernel.decide.limit_options import key_of as key_of
