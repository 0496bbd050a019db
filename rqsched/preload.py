"""Prepare plain RQ workers: `rq worker -c rqsched.preload rqsched default`.

RQ imports this module in the worker. So the application, the driver of its database and the compiled statements of a
run are already loaded when a work horse is forked. The module also keeps a dispatcher beside the worker: schedules fire
on time even while the worker executes a long job, and after any of these processes has died. It leaves no connection
open, and continues while servers are down. RQ reads its upper-case names as settings. For other commands of RQ, such as
`rq info`, it starts nothing.
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
from rqsched.api.background_reconcile import find_worker_command
from rqsched.config import Settings, is_in_environment, variable_of
from rqsched.errors import BackendUnavailableError, ConfigError
from rqsched.kernel.chain.imports import import_workflows
from rqsched.kernel.store.database import make_engine
from rqsched.kernel.transport.redis_url import as_rq_setting, parse_sentinel, url_of
from rqsched.run.dispatcher_keeper import KeptDispatcher
from rqsched.run.rq_worker import PatientWorker
from rqsched.run.warm_up import warm_up
from rqsched.run.worker import make_one_pass


def _read_settings(options: dict[str, Any] | None) -> Settings:
    """Read the settings; without RQSCHED_REDIS_URL, use the Redis of RQ's worker.

    RQ takes the URL from `--url`, its module of settings or the environment. Children and horses read it from the
    environment.
    """
    if options is None:
        return Settings()
    try:
        if not is_in_environment("redis_url"):
            own = vars(sys.modules.get(options["config"], sys.modules[__name__]))
            given = {name: value for name, value in own.items() if name.isupper() and not name.startswith("_")}
            os.environ[variable_of("redis_url")] = options["url"] or url_of(get_redis_from_config(given or os.environ))
        return Settings()
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _start_beside(options: dict[str, Any], settings: Settings) -> KeptDispatcher | None:
    """Keep a dispatcher beside an RQ worker; for a burst, make one pass. Do nothing for a class with a dispatcher."""
    worker_class = import_worker_class(options["worker_class"])
    spawns = issubclass(worker_class, SpawnWorker)
    if issubclass(worker_class, PatientWorker):
        return None
    if options["burst"]:
        make_one_pass(jobs.current_runtime(), spawns=spawns)
        return None
    level = logging.WARNING if options["quiet"] else options["logging_level"] or logging.INFO
    kept = KeptDispatcher(settings, spawns=spawns, log_level=level)
    kept.start()
    return kept


_command = find_worker_command()
_options = None if _command is None else dict(_command.params)
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
        warm_up(jobs.current_runtime())  # the same runtime that each work horse uses
    _kept = _start_beside(_options, _settings)
    if _kept is not None:
        jobs.current_runtime().write_gate.wait()
