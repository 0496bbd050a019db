"""The dashboard: pages for operators, rendered on the server over the same operations as the API.

`create_app()` serves it at `/` where the `dashboard` extra is installed. Nothing here decides about schedules.
"""

from rqsched.dashboard.routes import routes

__all__ = ["routes"]
