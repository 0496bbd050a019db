"""The dashboard: pages for operators, rendered on the server over the same operations as the API.

`create_app()` serves it at `/` where the `dashboard` extra is installed, `wsgi()` in Flask, Django and their like.
Nothing here decides about schedules.
"""

from rqsched.dashboard.mount import wsgi
from rqsched.dashboard.routes import routes
from rqsched.dashboard.session import sessions
from rqsched.http.auth import Principal, Role

__all__ = ["Principal", "Role", "routes", "sessions", "wsgi"]
