"""Workflows that processes have registered."""

from rqsched.kernel.chain.option_checks import is_registered as is_registered
from rqsched.kernel.store.registered_workflows import names_in_use as names_in_use
from rqsched.kernel.store.registered_workflows import read_all as read_all
