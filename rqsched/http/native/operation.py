"""Describe each operation of the native surface in one entry. Its route, its models and both clients follow from it.

The types and descriptions come from the scheduler's method: from its signature, its docstring and the listed arguments.
`tests/support/operations.py` writes the clients' part, `rqsched/client/operations.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce, singledispatch
from operator import attrgetter, or_
from types import FunctionType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Path, Query
from pydantic import Field, create_model
from starlette.responses import Response

from rqsched.api.scheduler import Scheduler
from rqsched.api.values import MAX_PAGE
from rqsched.http.dependencies import Call, Read, require_all
from rqsched.http.examples import shown as with_example
from rqsched.http.native.requests import Instant, Name, Note, RequestBody
from rqsched.http.openapi import PROBLEM, ErrorLike, Json
from rqsched.http.request_bodies import StrictRoute
from rqsched.types import Page

_OF_ALL = ("everything", "shared")
"""Parameters that make an operation concern every namespace. To write, the principal must then see every namespace."""
_OF_THE_PROCESS = {"self", "namespace", "context", "progress", "if_version", "connection", "session"}
"""Parameters of methods that are not parameters of a request. For example, the version comes from a header."""
_TYPES: Mapping[Any, Any] = {str: Name, datetime: Instant, Sequence[str]: list[Name]}
_NAMED: Mapping[str, Any] = {
    "limit": Annotated[int, Field(ge=1, le=MAX_PAGE)],
    "cursor": Annotated[str, Field(max_length=500)] | None,
    "reason": Note | None,
    "note": Note | None,
}
"""The types of parameters that many operations have."""
_WORDS: Mapping[str, str] = {
    "limit": "The size of a page; large items make shorter ones.",
    "cursor": "The next_cursor of the previous page.",
    "reason": "Why; recorded with the caller.",
}
"""The descriptions of these parameters, for methods whose docstrings do not list them."""


def _as_json(_: Call, result: Any) -> Response:
    return Response(status_code=204) if result is None else Json(shown(result))


@dataclass(frozen=True, slots=True)
class Owner:
    """The object whose method an operation calls: the scheduler, or an object that the request names."""

    kind: type
    """Its class."""
    takes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The parameters with which a request names this object, each with its annotation and its default."""
    find: Callable[[Call, dict[str, Any]], Any] = lambda call, _: call.scheduler
    """Finds the object for a request. Removes the arguments that it needs, and may add other arguments."""
    answer: Callable[[Call, Any], Response] = _as_json
    """Makes the response from the method's result."""


SCHEDULER = Owner(Scheduler)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the native surface."""

    name: str
    """Its id in the OpenAPI document."""
    method: str
    """The HTTP method."""
    path: str
    """The path below `/api/v1`."""
    calls: str
    """The owner's method, such as `limits.set`. Both clients have a method of the same name."""
    needs: Any
    """The kind of Call: the role, and whether the operation takes conditions or computes for seconds."""
    answer: Any
    """The schema of the answer; None if it has no content."""
    errors: Sequence[ErrorLike] = ()
    """The errors in addition to those of every route."""
    is_repeatable: bool = False
    """Whether sending it twice has the same effect as once. A client then sends it again if the answer is lost.

    A client also sends every dry run again.
    """
    types: Mapping[str, Any] = field(default_factory=dict)
    """The types of parameters that have limits over HTTP. The method's annotations do not state these limits."""
    example: Mapping[str, Any] | None = None
    """An example of the body."""
    owner: Owner = SCHEDULER
    """The object whose method it calls."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function that `calls` names: of the owner's class, or of the class of a group."""
        found: Callable[..., Any] = attrgetter(self.calls)(self.owner.kind)
        return found

    @property
    def has_body(self) -> bool:
        """Whether a body contains the parameters that are not in the path. Otherwise the query contains them."""
        return self.method not in {"GET", "DELETE"}


class Parameter(NamedTuple):
    """A parameter of an operation that a request sends."""

    name: str
    """Its name, the same in the method and over HTTP."""
    annotation: str
    """The annotation of the method."""
    kind: Any
    """Its type over HTTP."""
    default: Any
    """`inspect.Parameter.empty` if it is required."""
    is_keyword: bool
    """Whether the method takes it only by name."""
    about: str
    """What it means."""


def parameters_of(operation: Operation) -> list[Parameter]:
    """Return the parameters that a request sends. If the context contains the reason, `reason` is one of them."""
    function = operation.function
    taken, words = inspect.signature(function).parameters, arguments_in(function)
    hints = _hints(function, [name for name in taken if name not in _OF_THE_PROCESS and name not in operation.types])
    found = [
        Parameter(
            name,
            str(one.annotation),
            operation.types.get(name) or _NAMED.get(name) or _over_http(hints[name]),
            one.default,
            one.kind is one.KEYWORD_ONLY,
            words.get(name, _WORDS.get(name, "")),
        )
        for name, one in taken.items()
        if name not in _OF_THE_PROCESS
    ]
    if "context" in taken and not {"reason", "note"} & taken.keys():
        found.append(Parameter("reason", "str | None", _NAMED["reason"], None, True, _WORDS["reason"]))
    return found


def _hints(function: Callable[..., Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the types of some parameters. Other parameters may have types that exist only for type checkers."""
    alike = FunctionType(function.__code__, function.__globals__)
    alike.__annotations__ = {name: function.__annotations__[name] for name in names}
    return get_type_hints(alike)


def _over_http(hint: Any) -> Any:
    if get_origin(hint) in {Union, UnionType}:
        return reduce(or_, map(_over_http, get_args(hint)))
    return _TYPES.get(hint, hint)


def arguments_in(function: Callable[..., Any]) -> dict[str, str]:
    """Return the text of each argument that a docstring lists."""
    _, _, listed = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    parts = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in parts}


def words_of(function: Callable[..., Any], *, raises: bool = True) -> str:
    """Return a docstring without its examples and arguments. Unless `raises`, also leave out the exceptions."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:\n")[0]
    paragraphs = [one for one in text.split("\n\n") if not one.lstrip().startswith(">>>")]
    words = "\n\n".join(one.strip("\n") for one in paragraphs).strip()
    return words if raises else re.sub(r"(;\s*raises\s[^.]*)|(\s*\bRaises\s[^.]*\.)", "", words)


@singledispatch
def shown(value: Any) -> Any:
    """Return a result as JSON shows it. A feature registers a form for each type that is not shown as its fields."""
    return value


@shown.register
def _(value: Page) -> Any:  # type: ignore[type-arg] # registered by its class
    return {"items": [*map(shown, value.items)], "next_cursor": value.next_cursor}


@shown.register
def _(value: list) -> Any:  # type: ignore[type-arg] # as above
    return {"items": [*map(shown, value)]}


def routes(operations: Sequence[Operation], *tags: str) -> APIRouter:
    """Return the routes of operations."""
    router = APIRouter(route_class=StrictRoute, tags=[*tags])
    for one in operations:
        router.add_api_route(
            one.path,
            _endpoint(one),
            name=one.name,
            methods=[one.method],
            response_model=one.answer,
            status_code=204 if one.answer is None else None,
            responses=PROBLEM.of(*one.errors),
            description=words_of(one.function, raises=False),
        )
    return router


def _endpoint(operation: Operation) -> Callable[..., Response]:
    sent = parameters_of(operation)
    in_path = [one for one in sent if f"{{{one.name}}}" in operation.path]
    others = [one for one in sent if one not in in_path]
    in_body, in_query = (others, []) if operation.has_body else ([], others)

    def endpoint(call: Call, **given: Any) -> Response:
        body = given.pop("body", None)
        arguments = given | {one.name: getattr(body, one.name) for one in in_body if body is not None}
        owner = operation.owner.find(call, arguments)
        return operation.owner.answer(call, _call(operation, call, owner, arguments))

    shape = [*_call_and_body(operation, in_body)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    for name, (annotation, default) in operation.owner.takes.items():
        shape.append(inspect.Parameter(name, keyword, annotation=annotation, default=default))
    for places, marker in ((in_path, Path), (in_query, Query)):
        shape += [
            inspect.Parameter(
                one.name,
                keyword,
                annotation=Annotated[one.kind, marker(description=one.about)],
                default=one.default,
            )
            for one in places
        ]
    endpoint.__signature__ = inspect.Signature(shape)  # type: ignore[attr-defined] # FastAPI reads it
    return endpoint


def _call_and_body(operation: Operation, fields: Sequence[Parameter]) -> Iterator[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    yield inspect.Parameter("call", keyword, annotation=operation.needs)
    if fields:
        is_required = any(one.default is inspect.Parameter.empty for one in fields)
        model = _model(operation, fields)
        default = inspect.Parameter.empty if is_required else None
        yield inspect.Parameter("body", keyword, annotation=model if is_required else model | None, default=default)


def _model(operation: Operation, fields: Sequence[Parameter]) -> Any:
    """Return the model of an operation's body. The model is named after the operation."""
    name = "".join(word.capitalize() for word in operation.name.split("_"))
    shape: Any = {
        one.name: (
            one.kind,
            Field(default=_default(one.default), description=one.about),
        )
        for one in fields
    }
    base = type(f"{name}Base", (RequestBody,), {}, json_schema_extra=with_example(dict(operation.example or {})))
    about = f"The body of `{operation.name}`."
    return create_model(f"{name}Request", __base__=base, __doc__=about, **shape)


def _default(default: Any) -> Any:
    """Return the default of a parameter in the form of pydantic."""
    if default is inspect.Parameter.empty:
        return ...
    return list(default) if isinstance(default, tuple) else default


def _call(operation: Operation, call: Call, owner: Any, arguments: dict[str, Any]) -> Any:
    """Call the owner's method for the namespace of the request, or for all namespaces."""
    taken = inspect.signature(operation.function).parameters
    if any(map(arguments.get, _OF_ALL)):
        if operation.needs is not Read:
            require_all(call)
    elif "namespace" in taken:
        arguments["namespace"] = call.namespace
    if "context" in taken:
        reason = {} if {"reason", "note"} & taken.keys() else {"reason": arguments.pop("reason", None)}
        arguments["context"] = replace(call.context, **reason)
    return attrgetter(operation.calls)(owner)(**arguments)
