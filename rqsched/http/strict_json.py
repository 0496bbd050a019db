"""Strict JSON: text that parsers read differently, or that only Python accepts, is refused as malformed.

Refused: NaN and infinities, duplicate keys, lone surrogates, NUL characters, numbers beyond a float, deep nesting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NoReturn

from fastapi import Depends
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from rqsched.http.errors import MalformedError

MAX_DEPTH = 100


def parse_json(raw: bytes) -> Any:
    """Read JSON text; raises MalformedError."""
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float
        )
    except UnicodeDecodeError:
        raise MalformedError("the body is not valid UTF-8.") from None
    except RecursionError:
        raise MalformedError(f"the body is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:
        raise MalformedError(f"the body is not valid JSON: {error}.") from None
    _require_plain(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedError("an object in the body has the same key twice.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedError(f"{name} is not valid JSON.")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError("a number in the body is outside the range of a float.")
    return value


def _require_plain(value: Any) -> None:
    """Walk level by level, so that no depth exhausts the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedError(f"the body is nested deeper than {MAX_DEPTH} levels.")
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
        raise MalformedError("a text in the body contains a NUL character.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise MalformedError("a text in the body contains a lone surrogate, which is not valid Unicode.")


async def json_body(request: Request) -> Any:
    """Read the body as strict JSON; None when it is empty. For routes that check the value themselves."""
    raw = await request.body()
    return parse_json(raw) if raw.strip() else None


JsonBody = Annotated[Any, Depends(json_body)]
"""The parsed body, of any JSON type."""


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return parse_json(await self.body())
        except MalformedError as error:  # the only kind of error that FastAPI's body reader lets through
            raise HTTPException(400, str(error)) from error


class StrictRoute(APIRoute):
    """A route whose pydantic bodies are read as strict JSON: `APIRouter(route_class=StrictRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a request that reads JSON strictly."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly
