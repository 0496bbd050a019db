"""Errors of SQL and Redis: what happened and what to do."""

from rqsched.kernel.chain.error_text import explain as explain
from rqsched.kernel.store.database import UNREACHABLE as UNREACHABLE
from rqsched.kernel.transport.refusal import advice_for as advice_for
from rqsched.kernel.transport.refusal import briefly as briefly
from rqsched.kernel.transport.refusal import is_refusal as is_refusal
from rqsched.kernel.transport.refusal import told as told
