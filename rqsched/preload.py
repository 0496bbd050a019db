"""For plain RQ workers: `rq worker -c rqsched.preload rqsched default`.

RQ imports this module in the worker, so each work horse is forked with the application and the driver of its database
already imported, and the statements of a run compiled. Beside the worker it keeps a dispatcher, so that schedules fire
on time whatever the worker executes and whichever process dies. It leaves no connection open, and goes on without
servers that are away. Its upper-case names are RQ's settings. For `rq info` and its like it starts nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

import click
from rq.cli.helpers import get_redis_from_config
from rq.utils import import_worker_class
from rq.worker import SpawnWorker

from rqsched import jobs
from rqsched.api.recovering import find_worker_command
from rqsched.chain.runtime import current_runtime, import_workflows
from rqsched.config import Settings
from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.processes.dispatcher_keeper import KeptDispatcher
from rqsched.processes.rq_worker import PatientWorker
from rqsched.processes.warm_up import warm_up
from rqsched.processes.worker import make_one_pass
from rqsched.store.database import make_engine
from rqsched.transport.redis_url import as_rq_setting, parse_sentinel, url_of

_REDIS_URL = "RQSCHED_REDIS_URL"


def _options_of_worker() -> dict[str, Any] | None:
    """Return the options of RQ's command when it starts a worker or several."""
    command = find_worker_command()
    return None if command is None else dict(command.params)


def _url_of_worker(options: dict[str, Any]) -> str:
    """Return the Redis that RQ's command was given: by `--url`, its module of settings or the environment."""
    own = vars(sys.modules.get(options["config"], sys.modules[__name__]))
    given = {name: value for name, value in own.items() if name.isupper() and not name.startswith("_")}
    return options["url"] or url_of(get_redis_from_config(given or os.environ))


def _read_settings(options: dict[str, Any] | None) -> Settings:
    if options is None:
        return Settings()
    try:
        if not os.environ.get(_REDIS_URL):
            os.environ[_REDIS_URL] = _url_of_worker(options)  # children and horses read it
        return Settings()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _start_beside(options: dict[str, Any], settings: Settings) -> KeptDispatcher | None:
    """Have a dispatcher beside a worker of RQ's; for a burst one pass, and nothing beside a class that has its own."""
    worker_class = import_worker_class(options["worker_class"])
    spawns = issubclass(worker_class, SpawnWorker)
    if issubclass(worker_class, PatientWorker):
        return None
    if options["burst"]:
        make_one_pass(spawns=spawns)
        return None
    level = logging.WARNING if options["quiet"] else options["logging_level"] or logging.INFO
    kept = KeptDispatcher(settings, spawns=spawns, log_level=level)
    kept.start()
    return kept


_options = _options_of_worker()
_settings = _read_settings(_options)
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

if _options is not None:
    with contextlib.suppress(BackendUnavailableError):
        warm_up(current_runtime())  # the very one that each work horse uses
    _kept = _start_beside(_options, _settings)
