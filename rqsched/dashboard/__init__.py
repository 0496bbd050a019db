"""The dashboard: pages for operators, rendered on the server over the same operations as the API.

If the extra `dashboard` is installed, `create_app()` serves the pages at `/`. `wsgi()` serves them in Flask, Django and
other WSGI applications. Nothing here decides about schedules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqsched.dashboard.mount import wsgi
    from rqsched.http.auth import Principal, Role

__all__ = ["Principal", "Role", "wsgi"]

_HOMES = {
    "Principal": "http.auth",
    "Role": "http.auth",
    "wsgi": "dashboard.mount",
}
"""The module of each public name. A module is imported when its name is first used, because the pages of features
import parts of this package.
"""


def __getattr__(name: str) -> Any:
    """Import the module of a name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rqsched.{_HOMES[name]}"), name)
