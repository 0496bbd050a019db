"""Runs that workers of any language fetch, hold and end."""

from rqsched.features.external.chain import ClaimedRun as ClaimedRun
from rqsched.features.external.chain import claim as claim
from rqsched.features.external.chain import find as find
from rqsched.features.external.chain import finish as finish
from rqsched.features.external.chain import heartbeat as heartbeat
from rqsched.features.retry_on_request.chain import retry_run as retry_run
from rqsched.kernel.chain.settle import settle_run as settle_run
from rqsched.kernel.decide.model import fence_of as fence_of
from rqsched.kernel.decide.settle_decision import AttemptOutcome as AttemptOutcome
from rqsched.kernel.decide.settle_decision import AttemptResult as AttemptResult
