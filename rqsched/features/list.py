"""The features behind the points of `feature`, and the tracer: the kernel meets these features only here.

Surfaces find the parts that features add to them here, too.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
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
    """Return the features of a process, in the order in which they take part at each point."""
    return [
        Calendars(runtime),
        Quotas(runtime),
        FanOut(runtime),  # before Limits: a target that is lost or over frees a place
        Limits(runtime),
        After(runtime),
        Notifications(runtime),  # behind FanOut: a run that is over has ended before it is reported as late
        Hours(runtime),
        Backfills(runtime),
        Prunings(runtime),
        RetryOnRequest(runtime),
    ]


def tracer_of(settings: Settings) -> Tracer | None:
    """Return the tracer of a process, None where the settings switch it off.

    Raises ConfigError where it is on without OpenTelemetry installed.
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


_PARTS = {
    "http": (
        "features.quotas.http",
        "features.limits.http",
        "features.backfill.http",
        "features.namespaces.http",
        "simulate.http",
        "features.freeze.http",
        "features.calendars.http",
    ),
    "page": ("features.bulk.page", "features.calendars.page", "features.limits.page"),
}


def parts_of(surface: str) -> list[ModuleType]:
    """Import the modules that features add to a surface: `http` has their routers, `page` their pages.

    The module of a command is named by its entry in `rqsched.cli.app`, which imports it when the command is used.
    """
    return [import_module(f"rqsched.{name}") for name in _PARTS[surface]]


make_runtime = partial(Runtime, features=features_of, tracer=tracer_of)
"""Makes the runtime of a process, with all features; it takes what `Runtime` takes."""
