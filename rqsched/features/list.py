"""The list of all features of a process, and its tracer. Only this module connects the kernel to the features.

A surface (HTTP, dashboard) also finds here the modules that features add to it.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rqsched.config import Settings
from rqsched.errors import ConfigError, install
from rqsched.features.after.chain import After
from rqsched.features.backfill.chain import Backfills
from rqsched.features.calendars.chain import Calendars
from rqsched.features.fan_out.chain import FanOut
from rqsched.features.hours.chain import Hours
from rqsched.features.limits.chain import Limits
from rqsched.features.notifications.chain import Notifications
from rqsched.features.pruning.chain import Prunings
from rqsched.features.quotas.chain import Quotas
from rqsched.features.retry_on_request.chain import RetryOnRequest
from rqsched.kernel.chain.feature import Feature
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.chain.tracer import Tracer


def features_of(runtime: Runtime) -> list[Feature]:
    """Return the features of a process, in the order in which the kernel calls them."""
    return [
        Calendars(runtime),
        Quotas(runtime),
        FanOut(runtime),  # before Limits, because a target that has ended frees a place
        Limits(runtime),
        After(runtime),
        Notifications(runtime),  # after FanOut, which ends runs: an ended run is not reported as long
        Hours(runtime),
        Backfills(runtime),
        Prunings(runtime),
        RetryOnRequest(runtime),
    ]


def tracer_of(settings: Settings) -> Tracer | None:
    """Return the tracer of a process; None if the settings turn tracing off.

    Raises ConfigError if tracing is on, but OpenTelemetry is not installed.
    """
    if not settings.otel:
        return None
    try:
        from rqsched.features.tracing.chain import Tracing  # noqa: PLC0415 - an optional extra, which is imported nowhere else
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ConfigError(
            f"RQSCHED_OTEL is on, and opentelemetry-api is not installed here: run {install('otel')}, "
            "or turn RQSCHED_OTEL off."
        ) from error
    return Tracing(settings.default_queue)


FOLDER = Path(__file__).parent
"""The folder of all features. The dashboard finds the template `limits/limit.html` in it."""
_PARTS = {
    "http": (
        "features.quotas.http",
        "features.limits.http",
        "features.backfill.http",
        "features.bulk.http",
        "features.declarations.http",
        "features.fan_out.http",
        "features.namespaces.http",
        "simulate.http",
        "features.freeze.http",
        "features.calendars.http",
    ),
    "page": (
        "features.backfill.page",
        "features.bulk.page",
        "features.calendars.page",
        "features.declarations.page",
        "features.freeze.page",
        "features.limits.page",
        "features.namespaces.page",
        "features.retry_on_request.page",
        "features.run_again.page",
    ),
}


def parts_of(surface: str) -> list[ModuleType]:
    """Import the modules that features add to a surface: `http` has their routers, `page` the routes of their pages.

    Modules of commands are not included, because `rqsched.cli.app` has their names and imports each at its first use.
    """
    return [import_module(f"rqsched.{name}") for name in _PARTS[surface]]


make_runtime = partial(Runtime, features=features_of, tracer=tracer_of)
"""Makes the runtime of a process, with all features. It has the parameters of `Runtime`."""
