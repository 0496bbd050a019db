"""HTTP: one ASGI application over a Scheduler, with three surfaces and one error mapping.

>>> from rqsched.http import create_app
>>> app = create_app(scheduler)  # doctest: +SKIP

`uvicorn --factory rqsched.http:create_app` runs it from `RQSCHED_*`; `rqsched web` does so with safer defaults.
"""

from rqsched.http.app import create_app, serve
from rqsched.http.auth import Principal, Role
from rqsched.http.limits import Limits
from rqsched.http.server import close_streams, run_server

__all__ = ["Limits", "Principal", "Role", "close_streams", "create_app", "run_server", "serve"]
