"""The parts of the OpenAPI document that FastAPI cannot derive: errors, in each surface's own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import JsonSchemaMode, models_json_schema

_REF = "#/components/schemas/{model}"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
_MEANING: Mapping[int, str] = {
    400: "The request cannot be read, or is refused.",
    401: "The token is missing or unknown.",
    403: "The role does not allow it, or the quota of the namespace.",
    404: "It does not exist, or not for this token.",
    408: "The body did not arrive in time.",
    409: "The current state does not allow it.",
    412: "The schedule changed since it was read.",
    413: "The body exceeds the limit.",
    422: "A field of the request is refused.",
    429: "The token exceeds its rate.",
    500: "A defect; the log contains the request's id.",
    503: "A backend does not respond.",
}
_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
ANY = (400, 401, 403, 404, 408, 413, 422, 429, 500, 503)
"""The errors of every route that takes a Call."""


_NATIVE = "/api/v1/"
PUBLIC = ("/healthz", "/readyz", "/ojs/manifest")
"""The paths that need no token."""


class Schema(BaseModel):
    """A response, or a part of one. It has no other fields."""

    model_config = ConfigDict(extra="forbid")


class ProblemField(Schema):
    """The error of one field."""

    field: str
    message: str
    code: str


class ProblemResponse(Schema):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """A stable identifier of the kind of error."""
    request_id: str
    errors: list[ProblemField] | None = None
    attributes: dict[str, str | int | None] | None = None
    """What the error is about, by name: `schedule_id`, `status`, `actual` ..."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The errors of one surface, for the `responses` of its routers and routes."""

    model: type[BaseModel]
    """The schema of its error bodies."""
    media_type: str = "application/json"
    """Their media type."""

    def of(self, *statuses: int) -> dict[int | str, dict[str, Any]]:
        """Return the entries of these statuses."""
        content = {self.media_type: {"schema": reference(self.model)}}
        return {
            status: {"description": _MEANING[status], "headers": _HEADERS.get(status, {}), "content": content}
            for status in statuses
        }


PROBLEM = Refusals(ProblemResponse, "application/problem+json")


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return a reference to a model that `complete` adds to the document."""
    return {"$ref": _REF.format(model=model.__name__)}


def request_body(model: type[BaseModel], *media_types: str) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its body itself."""
    content = {media_type: {"schema": reference(model)} for media_type in media_types}
    return {"requestBody": {"required": True, "content": content}}


def complete(
    app: FastAPI, *, requests: Sequence[type[BaseModel]], responses: Sequence[type[BaseModel]], is_open: bool
) -> None:
    """Add the models that routes refer to by `reference` to the application's document, and who may ask.

    An application that `is_open` asks nobody for a token.
    """
    generate = app.openapi
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in requests]
    modes += [(model, "serialization") for model in responses]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:  # FastAPI keeps what it generated
            _, schemas = models_json_schema(modes, ref_template=_REF)
            document = generate()
            document["components"]["schemas"] |= schemas["$defs"]
            for path, operations in document["paths"].items():
                if path.startswith(_NATIVE) and "get" in operations:
                    operations["get"]["responses"]["304"] = {"description": "As the ETag in If-None-Match says."}
            for path in document["paths"] if is_open else PUBLIC:
                for operation in document["paths"].get(path, {}).values():
                    operation["security"] = []
        return app.openapi_schema or generate()

    app.openapi = openapi  # type: ignore[method-assign]
