"""What the OpenAPI document says that FastAPI cannot know: one table of refusals, in each surface's own form."""

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
    401: "No known token.",
    403: "Not for this role.",
    404: "Not there, or not for this token.",
    409: "The state of things forbids it.",
    412: "It changed since it was read.",
    413: "The body exceeds the limit.",
    422: "Something in the request is refused.",
    429: "More requests than the token's share.",
    500: "A defect; the log has the request's id.",
    503: "A backend does not answer.",
}
_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}
ANY = (400, 401, 403, 404, 413, 422, 429, 500, 503)
"""What any route that asks for a Call may be refused with."""


class Schema(BaseModel):
    """An answer, or a part of one: nothing is in it that is not said here."""

    model_config = ConfigDict(extra="forbid")


class ProblemField(Schema):
    """What is wrong with one field."""

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
    """A stable word."""
    request_id: str
    errors: list[ProblemField] | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """How one surface refuses, for the `responses` of its routers and routes."""

    model: type[BaseModel]
    media_type: str = "application/json"

    def of(self, *statuses: int) -> dict[int | str, dict[str, Any]]:
        """Give the entries of some statuses of the table."""
        content = {self.media_type: {"schema": reference(self.model)}}
        return {
            status: {"description": _MEANING[status], "headers": _HEADERS.get(status, {}), "content": content}
            for status in statuses
        }


PROBLEM = Refusals(ProblemResponse, "application/problem+json")


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Refer to a model that `complete` adds to the document."""
    return {"$ref": _REF.format(model=model.__name__)}


def request_body(model: type[BaseModel], *media_types: str) -> dict[str, Any]:
    """Give the `openapi_extra` of a route that reads its body itself."""
    content = {media_type: {"schema": reference(model)} for media_type in media_types}
    return {"requestBody": {"required": True, "content": content}}


def complete(app: FastAPI, *, sent: Sequence[type[BaseModel]], answered: Sequence[type[BaseModel]]) -> None:
    """Add the models to the application's document that its routes only refer to."""
    generate = app.openapi
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in sent]
    modes += [(model, "serialization") for model in answered]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:  # FastAPI keeps what it generated
            _, schemas = models_json_schema(modes, ref_template=_REF)
            generate()["components"]["schemas"] |= schemas["$defs"]
        return app.openapi_schema or generate()

    app.openapi = openapi  # type: ignore[method-assign]
