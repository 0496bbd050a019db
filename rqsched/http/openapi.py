"""Make the OpenAPI document: schemas from dataclasses, the parts that FastAPI cannot derive (errors), and a page.

The page at `/docs` shows the operations as plain HTML, without scripts or other hosts.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from html import escape
from itertools import pairwise
from typing import Any, ClassVar, get_type_hints

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, create_model
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from rqsched.api.values import iso_utc
from rqsched.errors import (
    BackendUnavailableError,
    DatabaseLimitError,
    DatabasePrivilegeError,
    DatabaseReadOnlyError,
    DatabaseUnavailableError,
    InvalidCronError,
    InvalidDurationError,
    InvalidIdError,
    InvalidInputError,
    InvalidLimitError,
    InvalidPayloadError,
    InvalidPolicyError,
    InvalidSpecError,
    InvalidTimezoneError,
    InvalidTypeError,
    LimitConflictError,
    NamespaceNotFoundError,
    NewerReleaseError,
    QuotaExceededError,
    RedisUnavailableError,
    RqschedError,
    SchemaError,
    TooMuchWorkError,
    UnknownCalendarError,
    UnknownWorkflowError,
    UpstreamError,
    WorkCancelledError,
)
from rqsched.http.errors import (
    ForbiddenError,
    MalformedError,
    RateLimitedError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
)
from rqsched.http.examples import example_of

_REF = "#/components/schemas/{model}"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
MEANINGS: Mapping[int, str] = {
    400: "The request cannot be read, or is refused.",
    401: "The token is missing or unknown.",
    403: "The role does not allow it, or the quota of the namespace.",
    404: "It does not exist, or not for this token.",
    408: "The body did not arrive in time.",
    409: "The current state does not allow it.",
    412: "The schedule or calendar changed since it was read.",
    413: "The body exceeds the limit.",
    415: "The body is compressed.",
    422: "A field of the request is refused.",
    429: "The token exceeds its rate.",
    500: "A defect; the log contains the request's id.",
    503: "A backend does not respond.",
}
"""The description of each error status."""
_HEADERS: Mapping[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
}

_NATIVE = "/api/v1/"
PUBLIC = ("/healthz", "/readyz", "/ojs/manifest")
"""The paths that need no token."""


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Describe the fields of a schema by the docstrings of the model and of the dataclass that the model shows."""
    meanings: dict[str, str] = {}
    for kind in (getattr(model, "shape", None), *reversed(model.__mro__)):
        if kind is not None and kind.__module__.startswith("rqsched."):
            meanings |= _docstrings_in(kind.__module__).get(kind.__name__, {})
    for name, field in schema.get("properties", {}).items():
        if name in meanings:
            field.setdefault("description", _PYTHON.sub(lambda word: _IN_JSON[word[0]], meanings[name]))


_IN_JSON = {"None": "null", "True": "true", "False": "false"}
_PYTHON = re.compile(r"\b(None|True|False)\b")


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Return the field docstrings of a module's classes. Read the source, because Python does not keep them."""
    try:
        source = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # installed without sources
        return {}
    return {one.name: dict(_documented(one.body)) for one in source.body if isinstance(one, ast.ClassDef)}


def _documented(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


class Schema(BaseModel):
    """A response, or a part of a response. It has exactly these fields."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=_describe)
    shape: ClassVar[type | None] = None
    """The dataclass that it shows, if any."""


def schema_of(
    name: str, shape: type, *, without: Sequence[str] = (), base: type[Schema] = Schema, doc: str | None = None
) -> Any:
    """Return the schema of a response that shows a dataclass, with the dataclass's fields, types and docstrings."""
    shown: Any = {field: (kind, ...) for field, kind in get_type_hints(shape).items() if field not in without}
    model = create_model(name, __base__=base, __doc__=doc or shape.__doc__, **shown)
    model.shape = shape
    return model


class Json(JSONResponse):
    """JSON of plain values, dataclasses (as their fields) and instants (as ISO 8601)."""

    def render(self, content: Any) -> bytes:
        """Return the encoded text of a value."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


class ProblemField(Schema):
    """The error of one field."""

    field: str
    """Its name, dotted when it is nested."""
    message: str
    """The cause and the remedy."""
    code: str
    """A stable identifier of the kind of error."""


class ProblemResponse(Schema):
    """Problem details (RFC 9457)."""

    type: str
    """A URN of the kind of error."""
    title: str
    """The kind of error in words."""
    status: int
    """The status of the response."""
    detail: str
    """The cause and the remedy."""
    code: str
    """A stable identifier of the kind of error."""
    request_id: str
    """The id of the request, which is also in the server's log."""
    errors: list[ProblemField] | None = None
    """The refused fields."""
    attributes: dict[str, str | int | list[str] | None] | None = None
    """The attributes of the error by name: `schedule_id`, `status`, `actual` ..."""


ErrorLike = type[RqschedError] | tuple[int, str]
"""An error class, or the status and the code of an error."""
CODES = "x-error-codes"
"""The key under which a response of the document lists the codes of its errors."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """The errors of one surface, for the `responses` of its routers and routes."""

    model: type[BaseModel]
    """The schema of its error bodies."""
    always: Sequence[ErrorLike]
    """The errors of every route that takes a Call."""
    media_type: str = "application/json"
    """The media type of the error bodies."""

    def of(self, *errors: ErrorLike) -> dict[int | str, dict[str, Any]]:
        """Return the responses for these errors, by status.

        A response also lists the codes that every route may return with this status.
        """
        given, always = _codes(errors), _codes(self.always)
        return {status: self._response(status, always.get(status, []) + codes) for status, codes in given.items()}

    def of_every_route(self, *statuses: int) -> dict[int | str, dict[str, Any]]:
        """Return the responses that every route may return; with `statuses`, only these."""
        always = _codes(self.always)
        return {status: self._response(status, always[status]) for status in statuses or always}

    def _response(self, status: int, codes: Sequence[str]) -> dict[str, Any]:
        known = list(dict.fromkeys(codes))
        return {
            "description": f"{MEANINGS[status]} Codes: {', '.join(known)}.",
            "headers": _HEADERS.get(status, {}),
            "content": {self.media_type: {"schema": reference(self.model)}},
            CODES: known,
        }


def _codes(errors: Sequence[ErrorLike]) -> dict[int, list[str]]:
    """Return the codes of errors by status."""
    found: dict[int, list[str]] = {}
    for error in errors:
        status, code = error if isinstance(error, tuple) else (error.http_status, error.code)
        found.setdefault(status, []).append(code)
    return dict(sorted(found.items()))


EVERYWHERE: Sequence[ErrorLike] = (
    UnauthorizedError, ForbiddenError, NamespaceNotFoundError, TooSlowError, TooLargeError,
    (415, "unsupported_media_type"), InvalidIdError, RateLimitedError, (500, "internal_error"),
    BackendUnavailableError, DatabaseUnavailableError, DatabaseReadOnlyError, DatabasePrivilegeError,
    DatabaseLimitError, RedisUnavailableError, SchemaError, WorkCancelledError,
)  # fmt: skip
"""The errors that routes of every surface may return, with the same codes."""
DEFINITION: Sequence[ErrorLike] = (
    InvalidSpecError, InvalidCronError, InvalidTimezoneError, InvalidDurationError, UpstreamError, InvalidPayloadError,
    InvalidPolicyError, InvalidTypeError, InvalidLimitError, TooMuchWorkError, UnknownWorkflowError,
    UnknownCalendarError, QuotaExceededError, LimitConflictError, NewerReleaseError,
)  # fmt: skip
"""The errors of a schedule's definition."""
PROBLEM = Refusals(ProblemResponse, (MalformedError, InvalidInputError, *EVERYWHERE), "application/problem+json")


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
    """Add the models that routes refer to by `reference`, and the security scheme, to the application's document.

    An application that `is_open` requires no token.
    """
    generate = app.openapi
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in requests]
    modes += [(model, "serialization") for model in responses]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:  # FastAPI caches the generated document
            _, schemas = models_json_schema(modes, ref_template=_REF)
            document = generate()
            document["components"]["schemas"] |= schemas["$defs"]
            _add_examples(document)
            for path, operations in document["paths"].items():
                if path.startswith(_NATIVE) and "get" in operations:
                    operations["get"]["responses"]["304"] = {"description": "As the ETag in If-None-Match says."}
            for path in document["paths"] if is_open else PUBLIC:
                for operation in document["paths"].get(path, {}).values():
                    operation["security"] = []
        return app.openapi_schema or generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _add_examples(document: dict[str, Any]) -> None:
    """Give each body of a request and of a successful response an example."""
    schemas = document["components"]["schemas"]
    for operation in (one for methods in document["paths"].values() for one in methods.values()):
        answers = [answer for status, answer in operation["responses"].items() if status < "300"]
        for body in (operation.get("requestBody", {}), *answers):
            for content in body.get("content", {}).values():
                if "schema" in content:
                    content.setdefault("example", example_of(content["schema"], schemas))


POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
"""The content security policy of the page, which may load only its own style."""
_METHODS = ("get", "put", "post", "patch", "delete")
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem } summary { cursor: pointer; padding: .3rem 0; overflow-wrap: anywhere }
code { font: .9em ui-monospace, monospace } details { border-bottom: 1px solid #8884 }
table { border-collapse: collapse; margin: .5rem 0 1rem; display: block; overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0 }
b { display: inline-block; min-width: 4.5rem }
"""


def docs_route(app: FastAPI) -> Route:
    """Return the route of the page."""

    def page(request: Request) -> Response:
        root = str(request.scope.get("root_path", ""))
        return HTMLResponse(render(app.openapi(), root), headers={"Content-Security-Policy": POLICY})

    return Route("/docs", page, methods=["GET"], include_in_schema=False)


def render(document: Mapping[str, Any], root: str = "") -> str:
    """Return the page of an OpenAPI document."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    body = "".join([*_operations(document["paths"]), "<h2>Schemas</h2>", *_schemas(document["components"]["schemas"])])
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    link = f'<p><a href="{escape(root)}/openapi.json">openapi.json</a> is the same for programs.</p>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{title}: HTTP API</title></head>'
        f"<body><h1>{title}: HTTP API</h1>{link}{body}</body></html>"
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for path, methods in paths.items():
        for method in _METHODS:
            if operation := methods.get(method):
                shared = [*methods.get("parameters", ()), *operation.get("parameters", ())]
                group = next(iter(operation.get("tags", ())), "Other")
                groups.setdefault(group, []).append(_operation(method, path, operation, shared))
    for group, operations in groups.items():
        yield f"<h2>{escape(group)}</h2>{''.join(operations)}"


def _operation(method: str, path: str, operation: Mapping[str, Any], parameters: list[Mapping[str, Any]]) -> str:
    rows = [_parameter(one) for one in parameters]
    content = operation.get("requestBody", {}).get("content", {})
    bodies = [(kind, type_in_words(one.get("schema", {}))) for kind, one in content.items()]
    answers = [(status, one.get("description", "")) for status, one in operation.get("responses", {}).items()]
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
        f"</summary><p>{escape(operation.get('description', ''))}</p>"
        f"{_table(rows)}{_table(bodies)}{_table(answers)}</details>"
    )


def _parameter(one: Mapping[str, Any]) -> tuple[str, ...]:
    kind = type_in_words(one.get("schema", {}))
    return one["name"], one["in"], kind, "required" if one.get("required") else "", one.get("description", "")


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        required = schema.get("required", ())
        rows = [
            (field, type_in_words(one), "required" if field in required else "", one.get("description", ""))
            for field, one in schema.get("properties", {}).items()
        ]
        values = ", ".join(str(value) for value in schema.get("enum", ()))
        yield (
            f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
            f"<p>{escape(schema.get('description', ''))} {escape(values)}</p>{_table(rows)}</details>"
        )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>" if rows else ""


def type_in_words(schema: Mapping[str, Any]) -> str:
    """Return a type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for kind in ("anyOf", "oneOf", "allOf"):
        if kind in schema:
            return " or ".join(type_in_words(one) for one in schema[kind])
    if schema.get("type") == "array":
        return f"list of {type_in_words(schema.get('items', {}))}"
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    told = [schema.get("type", "any"), schema.get("format", "")]
    for word, bound in (("from", "minimum"), ("to", "maximum")):
        told += [word, schema[bound]] if bound in schema else []
    return " ".join(str(part) for part in told if part != "")
