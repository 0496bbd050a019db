"""Serve a Scheduler over HTTP: one ASGI application with three surfaces and a common mapping of errors.

>>> from rqsched.http import create_app
>>> app = create_app(scheduler)  # doctest: +SKIP

`uvicorn --factory rqsched.http:create_app` serves an application that reads its settings from `RQSCHED_*`. The command
`rqsched web` does the same with safer defaults.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.http.app import create_app, serve
    from rqsched.http.auth import Principal, Role
    from rqsched.http.limits import Limits
    from rqsched.http.server import close_streams, run_server

__all__ = ["Limits", "Principal", "Role", "close_streams", "create_app", "run_server", "serve"]

_HOMES = {
    "Limits": "limits",
    "Principal": "auth",
    "Role": "auth",
    "close_streams": "server",
    "create_app": "app",
    "run_server": "server",
    "serve": "app",
}
"""The module of each public name. A module is imported when its name is first used, because the routes of features
import parts of this package.
"""


def __getattr__(name: str) -> Any:
    """Import the module of a name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
