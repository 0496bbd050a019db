"""Reasons, in codes and in words."""

from rqsched.kernel.decide.reasons import ASKED as ASKED
from rqsched.kernel.decide.reasons import NOTHING_FIRED as NOTHING_FIRED
from rqsched.kernel.decide.reasons import SkipReason as SkipReason
from rqsched.kernel.decide.reasons import end_in_words as end_in_words
from rqsched.kernel.decide.reasons import miss_in_words as miss_in_words
from rqsched.kernel.decide.reasons import skip_in_words as skip_in_words
