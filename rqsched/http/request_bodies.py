"""Read the bodies of requests after authentication, up to a limit of size and time, as strict JSON.

The sender of a login form is not authenticated yet. Therefore the dashboard reads small bodies of unknown senders, a
few at once for each address. A further body displaces the oldest body from its address, so that slow senders never
block others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, NoReturn, get_args

import anyio
import anyio.lowlevel
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from rqsched.errors import did_you_mean
from rqsched.http.auth import SAFE_METHODS, Authenticator
from rqsched.http.errors import BusyError, HttpError, MalformedError, TooLargeError, TooSlowError
from rqsched.http.limits import Limits
from rqsched.http.surface import DEFAULT, Surface

Knows = Callable[[HTTPConnection], Awaitable[bool]]
"""Returns whether a request to the pages carries a valid session."""


async def knows_nobody(connection: HTTPConnection) -> bool:
    """Return False: without pages there are no sessions."""
    del connection
    return False


class Bodies:
    """Reads the bodies of one application's requests."""

    def __init__(self, limits: Limits, authenticator: Authenticator, knows: Knows) -> None:
        self._limits = limits
        self._authenticator = authenticator
        self._knows = knows
        self._strangers: dict[str, list[anyio.CancelScope]] = {}

    async def read(self, connection: HTTPConnection, surface: Surface, receive: Receive) -> Receive:
        """Return a receiver that gives the whole body as one message.

        Raises UnauthorizedError or ForbiddenError before anything is read. Raises TooLargeError, TooSlowError or
        BusyError, and MalformedError if the client disconnects before its body is complete.
        """
        headers, scope = connection.headers, connection.scope
        # Over HTTP/2 a request may have a body without Content-Length and Transfer-Encoding.
        may_have_body = scope["method"] not in SAFE_METHODS and scope.get("http_version", "1.1") >= "2"
        if not may_have_body and "content-length" not in headers and "transfer-encoding" not in headers:
            return _replay(b"", receive)
        announced = headers.get("content-length", "0")
        size = int(announced[:20]) if announced.isascii() and announced.isdigit() else 0
        if size > self._limits.body_bytes:
            raise TooLargeError(self._limits.body_bytes)
        is_known = await self._is_known(connection, surface)
        if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            raise HTTPException(415, "a compressed body is not read; send it without Content-Encoding.")
        if is_known:
            return await self._within(self._limits.body_bytes, size, receive)
        return await self._of_stranger(connection.client.host if connection.client else "", size, receive)

    async def _of_stranger(self, address: str, size: int, receive: Receive) -> Receive:
        reading, own = self._strangers.setdefault(address, []), anyio.CancelScope()
        reading.append(own)
        if len(reading) > self._limits.strangers:
            reading[0].cancel()
            del reading[0]
        try:
            with own:
                await anyio.lowlevel.checkpoint_if_cancelled()
                return await self._within(self._limits.stranger_bytes, size, receive)
        finally:
            if own in reading:
                reading.remove(own)
            if not reading:
                self._strangers.pop(address, None)
        raise BusyError

    async def _is_known(self, connection: HTTPConnection, surface: Surface) -> bool:
        if surface is DEFAULT and await self._knows(connection):
            return True
        try:
            self._authenticator.principal_of(connection)
        except HttpError:
            if surface is DEFAULT:
                return False
            raise
        return True

    async def _within(self, limit: int, size: int, receive: Receive) -> Receive:
        if size > limit:
            raise TooLargeError(limit)
        try:
            with anyio.fail_after(self._limits.body_seconds):
                return _replay(await _read(receive, limit), receive)
        except TimeoutError:
            raise TooSlowError(self._limits.body_seconds) from None


async def _read(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise MalformedError("the connection ended before the body was whole; send the request again.")
        body += message.get("body", b"")
        if len(body) > limit:
            raise TooLargeError(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


MAX_DEPTH = 100


def parse_json(raw: bytes) -> Any:
    """Read JSON text; raises MalformedError."""
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float
        )
    except UnicodeDecodeError:
        raise MalformedError("the body is not valid UTF-8; encode it so.") from None
    except RecursionError:
        raise MalformedError(f"the body is nested deeper than {MAX_DEPTH} levels; flatten it.") from None
    except ValueError as error:
        raise MalformedError(f"the body is not valid JSON: {error}; correct it.") from None
    _require_plain(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedError("an object in the body has the same key twice; send it once.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedError(f"{name} is not valid JSON; send null or a number.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError("a number in the body is outside the range of a float; send it as text.")
    return value


def _require_plain(value: Any) -> None:
    """Check a value level by level, so that deep nesting does not exhaust the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedError(f"the body is nested deeper than {MAX_DEPTH} levels; flatten it.")
        for item in level:
            if isinstance(item, str):
                _require_text(item)
        level = [inner for item in level for inner in _inside(item)]


def _inside(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    return item if isinstance(item, list) else []


def _require_text(text: str) -> None:
    if "\x00" in text:
        raise MalformedError("a text in the body contains a NUL character; remove it.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise MalformedError("a text in the body contains a lone surrogate, which is not valid Unicode; remove it.")


async def json_body(request: Request) -> Any:
    """Read the body as strict JSON; None for an empty body. For routes that check the value themselves."""
    raw = await request.body()
    return parse_json(raw) if raw.strip() else None


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except MalformedError as error:  # FastAPI's body reader hides the text of every other error
            raise HTTPException(400, str(error)) from error


class StrictRoute(APIRoute):
    """A route whose pydantic bodies are read as strict JSON: `APIRouter(route_class=StrictRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a request that reads JSON strictly."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            try:
                return await handle(_StrictRequest(request.scope, request.receive))
            except RequestValidationError as error:
                bodies = [param.field_info.annotation for param in self.dependant.body_params]
                found = error.errors()
                hinted = [_hinted(one, bodies) for one in found[:_MOST_NAMED]]
                raise RequestValidationError([*hinted, *found[_MOST_NAMED:]]) from None

        return strictly


def _hinted(detail: dict[str, Any], bodies: Sequence[Any]) -> dict[str, Any]:
    """Return the error of a field. For an unknown field, the error names the nearest known field."""
    if detail["type"] != "extra_forbidden":
        return detail
    _, *parents, name = detail["loc"]
    models = [model for body in bodies for model in _models(body)]
    for parent in parents:
        fields = [model.model_fields[parent] for model in models if parent in model.model_fields]
        models = [inner for field in fields for inner in _models(field.annotation)] or models
    known = sorted({field.alias or own for model in models for own, field in model.model_fields.items()})
    others = f"; known are {', '.join(known)}" if len(known) <= _MOST_NAMED else "; leave it out"
    return {**detail, "msg": f"is not a field of this request{did_you_mean(str(name), known) or others}"}


_MOST_NAMED = 20
"""An error lists at most so many known fields, and a similar field is searched for at most so many errors."""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation, such as `Model` in `list[Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
