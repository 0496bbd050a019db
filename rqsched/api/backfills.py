"""Backfills, as surfaces start, continue and cancel them."""

from rqsched.features.backfill.chain import DEFAULT_BOUND as DEFAULT_BOUND
from rqsched.features.backfill.chain import continue_later as continue_later
from rqsched.features.backfill.chain import preview as preview
from rqsched.features.backfill.store import Backfill as Backfill
from rqsched.features.backfill.store import page as page
from rqsched.kernel.decide.runs_on_request import PRUNED as PRUNED
from rqsched.kernel.decide.runs_on_request import RERUN as RERUN
