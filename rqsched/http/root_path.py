"""The path below which a proxy serves the application: said by its header, or by the server's `root_path`.

A proxy may take that path away or leave it in the request, and says neither. What arrives tells it, unless the path is
one of our own: `/schedules` below `/schedules` and `/schedules` without its prefix are the same request. Such a path is
refused.
"""

from __future__ import annotations

from starlette.types import Scope

OWN = (
    "/api/v1", "/api/schedules", "/api/cluster", "/api/health", "/ojs", "/healthz", "/readyz", "/metrics", "/docs",
    "/openapi.json", "/schedules", "/runs", "/calendars", "/audit", "/why", "/find", "/timeline", "/system", "/preview",
    "/stream", "/bulk", "/release", "/freeze", "/thaw", "/namespace", "/limits", "/retry-failed", "/backfills",
    "/login", "/logout", "/theme", "/static",
)  # fmt: skip
"""Below which paths every route of ours is, the front page apart."""
SERVE_ELSEWHERE = "is a path of rqsched itself; serve it below another one, such as /rqsched."
"""What is wrong with such a path, after the path."""


def collides(path: str) -> bool:
    """Return whether a request below a path may be one for a route of ours."""
    return bool(path) and any(is_below(path, own) or is_below(own, path) for own in OWN)


def is_below(path: str, root: str) -> bool:
    """Return whether a path is another one, or below it."""
    return path == root or path.startswith(f"{root}/")


def without_repeat(scope: Scope) -> Scope:
    """Return a request with its root path once: a server writes its own before what a proxy has left in the path."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    rest = path.removeprefix(root)
    if root and is_below(path, root) and is_below(rest, root) and not collides(root):
        return {**scope, "path": rest}
    return scope
