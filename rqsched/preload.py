"""For plain RQ workers: `rq worker -c rqsched.preload --with-scheduler rqsched default`.

RQ imports this module in the worker, so each work horse is forked with the application and the driver of its database
already imported (5 links a second without it, 76 with). It opens no connection. Its upper-case names are RQ's settings.
"""

from __future__ import annotations

from rqsched import jobs
from rqsched.chain.runtime import import_workflows
from rqsched.config import Settings
from rqsched.store.database import make_engine

_settings = Settings()
import_workflows(_settings)
_entry_points = (jobs.fire, jobs.execute)
if _settings.database_url:
    make_engine(_settings.database_url)  # loads the driver: 90 ms that each work horse would spend

if _settings.redis_url:
    REDIS_URL = _settings.redis_url
