"""The path below which a proxy serves the application: said by its header, or by the server's `root_path`.

A proxy may strip that path from requests or leave it in, and does not say which. The request's own path shows it,
except when the prefix is one of our paths: `/schedules` below `/schedules` and `/schedules` without its prefix are the
same request. Such a prefix is refused.
"""

from __future__ import annotations

from starlette.types import Scope

OWN = (
    "/api/v1", "/api/schedules", "/api/cluster", "/api/health", "/ojs", "/healthz", "/readyz", "/metrics", "/docs",
    "/openapi.json", "/schedules", "/runs", "/calendars", "/audit", "/why", "/find", "/timeline", "/system", "/preview",
    "/stream", "/bulk", "/release", "/freeze", "/thaw", "/namespace", "/limits", "/retry-failed", "/backfills",
    "/login", "/logout", "/theme", "/static",
)  # fmt: skip
"""The first parts of the paths of all our routes but the front page."""
SERVE_ELSEWHERE = "is a path of rqsched itself; serve it below another one, such as /rqsched."
"""The error of such a prefix; the message begins with the prefix."""


def collides(path: str) -> bool:
    """Return whether a request below a path may look like a request for a route of ours."""
    return bool(path) and any(is_below(path, own) or is_below(own, path) for own in OWN)


def is_below(path: str, root: str) -> bool:
    """Return whether a path is another one, or below it."""
    return path == root or path.startswith(f"{root}/")


def without_repeat(scope: Scope) -> Scope:
    """Remove a repeated root path: a server prepends its own to one that a proxy has left in the path."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    rest = path.removeprefix(root)
    if root and is_below(path, root) and is_below(rest, root) and not collides(root):
        return {**scope, "path": rest}
    return scope
