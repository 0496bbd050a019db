"""The states of schedules and runs, the kinds of audit events, and reasons, in codes and in words."""

from rqsched.kernel.decide.audit import BUFFERED as BUFFERED
from rqsched.kernel.decide.audit import CONTRACT as CONTRACT
from rqsched.kernel.decide.audit import DIED as DIED
from rqsched.kernel.decide.audit import EXCLUDED as EXCLUDED
from rqsched.kernel.decide.audit import FAN_OUT_ENDED as FAN_OUT_ENDED
from rqsched.kernel.decide.audit import FIRE_FAILED as FIRE_FAILED
from rqsched.kernel.decide.audit import MISSED as MISSED
from rqsched.kernel.decide.audit import RUN_EXPIRED as RUN_EXPIRED
from rqsched.kernel.decide.audit import SKIPPED as SKIPPED
from rqsched.kernel.decide.audit import TRIGGERED as TRIGGERED
from rqsched.kernel.decide.audit import instant_of as instant_of
from rqsched.kernel.decide.model import BLOCKED as BLOCKED
from rqsched.kernel.decide.model import ENDED_IN_VAIN as ENDED_IN_VAIN
from rqsched.kernel.decide.model import EXPIRED as EXPIRED
from rqsched.kernel.decide.model import FAILURES as FAILURES
from rqsched.kernel.decide.model import OPEN as OPEN
from rqsched.kernel.decide.model import REPEATEDLY as REPEATEDLY
from rqsched.kernel.decide.model import RUN_FILTERS as RUN_FILTERS
from rqsched.kernel.decide.model import tone_of as tone_of
from rqsched.kernel.decide.reasons import ASKED as ASKED
from rqsched.kernel.decide.reasons import EVENTS as EVENTS
from rqsched.kernel.decide.reasons import NOTHING_FIRED as NOTHING_FIRED
from rqsched.kernel.decide.reasons import SkipReason as SkipReason
from rqsched.kernel.decide.reasons import end_in_words as end_in_words
from rqsched.kernel.decide.reasons import miss_in_words as miss_in_words
from rqsched.kernel.decide.reasons import skip_in_words as skip_in_words
