"""For plain RQ workers: `rq worker -c rqsched.preload --with-scheduler rqsched default`.

RQ imports this module in the worker, so each work horse is forked with the application and the driver of its database
already imported, and the statements of a run compiled. It leaves no connection open, and goes on without a database
that is away: where it serves a worker, a process of its own makes one pass of reconcile. Its upper-case names are RQ's
settings.
"""

from __future__ import annotations

import contextlib
import sys

from rqsched import jobs
from rqsched.chain.runtime import current_runtime, import_workflows
from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError
from rqsched.processes.boot import recover_apart
from rqsched.processes.warm_up import warm_up
from rqsched.store.database import make_engine
from rqsched.transport.redis_url import as_rq_setting, parse_sentinel

_settings = Settings()
import_workflows(_settings)
_entry_points = (jobs.fire, jobs.execute)
if _settings.database_url:
    make_engine(_settings.database_url)  # loads the driver: 90 ms that each work horse would spend

if _settings.redis_url:
    _sentinels = parse_sentinel(_settings.redis_url)
    if _sentinels is None:
        REDIS_URL = _settings.redis_url
    else:
        SENTINEL = as_rq_setting(_sentinels)

if {"worker", "worker-pool"} & set(sys.argv[1:]):  # not for `rq info` and its like
    recover_apart()
    if _settings.database_url and _settings.redis_url:
        with contextlib.suppress(BackendUnavailableError):
            warm_up(current_runtime())  # the very one that each work horse uses
