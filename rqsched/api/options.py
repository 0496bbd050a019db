"""The options of schedules: the table of all of them, their bounds, and the checks that need no database."""

from rqsched.kernel.decide import notifications
from rqsched.kernel.decide.notifications import EXPECTATIONS as EXPECTATIONS
from rqsched.kernel.decide.notifications import hidden as hidden
from rqsched.kernel.decide.notifications import refused_url as refused_url
from rqsched.kernel.decide.options import METADATA as METADATA
from rqsched.kernel.decide.options import OPTIONS as OPTIONS
from rqsched.kernel.decide.options import PARTS as PARTS
from rqsched.kernel.decide.options import POLICY as POLICY
from rqsched.kernel.decide.options import TARGETS as TARGETS
from rqsched.kernel.decide.options import WHAT as WHAT
from rqsched.kernel.decide.options import Kind as Kind
from rqsched.kernel.decide.options import Option as Option
from rqsched.kernel.decide.options import Part as Part
from rqsched.kernel.decide.options import help_of as help_of
from rqsched.kernel.decide.options import is_id as is_id
from rqsched.kernel.decide.options import require_id as require_id
from rqsched.kernel.decide.options import require_note as require_note
from rqsched.kernel.decide.policy import MAX_DELAY as MAX_DELAY
from rqsched.kernel.decide.policy import MAX_ERROR_TYPES as MAX_ERROR_TYPES
from rqsched.kernel.decide.policy import ErrorTypes as ErrorTypes
from rqsched.kernel.decide.policy import Policies as Policies

NOTIFICATION_TARGETS = notifications.TARGETS
"""The fields of the option `notifications`."""
