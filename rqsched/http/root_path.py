"""The path below which a proxy serves the application: from the proxy's header, or from the server's `root_path`.

A proxy may remove this prefix from requests or leave it, and does not say which. Usually the path of a request shows
whether the prefix was removed. But if the prefix is also a path of rqsched, the path does not show it. For example, the
proxy may have the prefix `/schedules`. Then a request for `/schedules` may mean the front page, or the page of the
schedules without its prefix. Therefore such a prefix is refused.
"""

from __future__ import annotations

from starlette.types import Scope

OWN = (
    "/api/v1", "/api/schedules", "/api/cluster", "/api/health", "/ojs", "/healthz", "/readyz", "/metrics", "/docs",
    "/openapi.json", "/schedules", "/runs", "/calendars", "/audit", "/why", "/find", "/timeline", "/system", "/preview",
    "/stream", "/bulk", "/freeze", "/thaw", "/namespace", "/limits", "/retry-failed", "/backfills",
    "/login", "/logout", "/theme", "/static",
)  # fmt: skip
"""The first parts of the paths of all routes of rqsched, except the front page."""
SERVE_ELSEWHERE = "is a path of rqsched itself; serve it below another one, such as /rqsched."
"""The end of the error message for a refused prefix. The message begins with the prefix."""


def collides(path: str) -> bool:
    """Return whether a request below a path may look like a request for a route of rqsched."""
    return bool(path) and any(is_below(path, own) or is_below(own, path) for own in OWN)


def is_below(path: str, root: str) -> bool:
    """Return whether a path equals `root` or lies below it."""
    return path == root or path.startswith(f"{root}/")


def without_repeat(scope: Scope) -> Scope:
    """Remove a repeated root path. A server prepends its root path even if a proxy has left it in the path."""
    root, path = str(scope.get("root_path", "")), str(scope["path"])
    rest = path.removeprefix(root)
    if root and is_below(path, root) and is_below(rest, root) and not collides(root):
        return {**scope, "path": rest}
    return scope
