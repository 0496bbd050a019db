"""An HTTP client of the application in process, with the environment behind it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from tests.support.env import Env

SCHEDULES = "/api/v1/schedules/"
MINUTELY = {"workflow": "note", "interval": "1m"}


@dataclass
class Web:
    """Sends requests to an application in process, each in its own event loop."""

    app: FastAPI
    env: Env
    headers: dict[str, str] = field(default_factory=dict)
    peer: str = "127.0.0.1"
    host: str = "localhost"

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | str | None = None,
        headers: dict[str, str] | None = None,
        params: Any = None,
    ) -> httpx.Response:
        """Send one request; `body` is sent as JSON, `content` as it is with a JSON content type."""
        if body is not None:
            content = json.dumps(body)
        sent = {"content-type": "application/json"} if content is not None else {}
        request = {"content": content, "params": params, "headers": {**sent, **self.headers, **(headers or {})}}
        answer = asyncio.run(self._send(method, path, request))
        if answer.is_error:
            require_documented(self.app, answer)
        return answer

    async def _send(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(self.peer, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as client:
            return await client.request(method, path, **request)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self("POST", path, body, **options)

    def create(self, schedule_id: str = "report", **fields: Any) -> dict[str, Any]:
        """Create a schedule that fires every minute; returns the response's body."""
        answer = self.post(SCHEDULES, {"schedule_id": schedule_id, **MINUTELY, **fields})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def read(self, schedule_id: str = "report") -> dict[str, Any]:
        answer = self.get(f"{SCHEDULES}{schedule_id}/")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def acting_as(self, token: str) -> Web:
        """Return a client of the same application with a token."""
        return Web(self.app, self.env, {**self.headers, "authorization": f"Bearer {token}"}, self.peer, self.host)


MakeWeb = Callable[..., Web]
Documented = dict[str, list[str]]
_DOCUMENTED: list[tuple[re.Pattern[str], dict[str, Documented]]] = []
"""The codes of errors by status, of each method of a path: made once, for all applications have the same."""


def require_documented(app: FastAPI, answer: httpx.Response) -> None:
    """Fail unless the document lists the error's code, if its path and method are operations of the document."""
    if not hasattr(app.state, "rqsched"):
        return
    if not _DOCUMENTED:
        _DOCUMENTED.extend(_documented(app))
    path, method = answer.request.url.path, answer.request.method.lower()
    whole = f"{path.rstrip('/')}/" if path.startswith("/api/v1/") else path
    found = [methods for pattern, methods in _DOCUMENTED if pattern.fullmatch(whole) and method in methods]
    if found:
        codes, body = found[0][method].get(str(answer.status_code)), answer.json()
        code = body.get("code") or body.get("reason") or body.get("error", {}).get("code")
        is_unknown = code is None or "outcome" in body  # readiness, and a failure that is named by its class alone
        assert is_unknown or code in (codes or ()), (
            f"{method} {path} does not document {answer.status_code} {code}: {answer.text}"
        )


def _documented(app: FastAPI) -> Iterator[tuple[re.Pattern[str], dict[str, Documented]]]:
    for path, methods in sorted(app.openapi()["paths"].items(), key=lambda one: "{" in one[0]):
        codes = {
            method: {status: answer.get("x-error-codes", []) for status, answer in operation["responses"].items()}
            for method, operation in methods.items()
        }
        yield re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), codes


def one_token(secret: str, role: str = "admin", **more: Any) -> str:
    """The setting `tokens` with one principal, `ada` of the default namespace unless told otherwise."""
    return json.dumps([{"name": "ada", "role": role, "token": secret, **more}])


def at(schedule_id: str = "report", operation: str = "") -> str:
    """Return the path of a schedule, or of an operation on it."""
    return f"{SCHEDULES}{schedule_id}/{operation}"


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Expect problem details with this status and code; returns them."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code), found
    assert found["request_id"] == answer.headers["x-request-id"]
    return found
