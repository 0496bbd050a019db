"""The targets of all runs of a namespace."""

from rqsched.features.fan_out.store import names_of_targets as names_of_targets
from rqsched.features.fan_out.store import newest_flow as newest_flow
