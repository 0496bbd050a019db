"""Turns a function into a command: option groups become options, errors become one line and an exit code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, get_type_hints

import typer
from redis.exceptions import RedisError

from rqsched.cli.output import Output, dump
from rqsched.cli.session import Session
from rqsched.errors import BackendUnavailableError, ConflictError, RqschedError
from rqsched.store.database import DatabaseError

FAILED, CONFLICT = RqschedError.exit_code, ConflictError.exit_code
"""The exit codes of a command that raises no error, but did not do all it was asked; docs/cli.md explains them."""


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command of `app`.

    A parameter whose type is a dataclass of annotated fields is a group of options: its fields become options, and
    the function gets the dataclass. A Session is such a group, and is open while the command runs.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name or function.__name__.replace("_", "-"))(_with_options(function))
        return function

    return register


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    parameters = inspect.signature(function, eval_str=True).parameters

    @wraps(function)
    def run(**given: Any) -> None:
        arguments = {name: _argument(parameter, given) for name, parameter in parameters.items()}
        _guarded(function, arguments)

    options = [option for parameter in parameters.values() for option in _options(parameter)]
    required = [option for option in options if option.default is option.empty]
    optional = [option for option in options if option.default is not option.empty]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature([*required, *optional])  # type: ignore[attr-defined]
    return run


def _options(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield the options a parameter stands for: itself, or the fields of its group."""
    group = parameter.annotation
    if isinstance(group, type) and is_dataclass(group):
        yield from _options_of_group(group)
    else:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


@lru_cache(maxsize=64)
def _options_of_group(group: type) -> tuple[inspect.Parameter, ...]:
    """Return the options that the fields of a group stand for; most commands have the same few groups."""
    hints = get_type_hints(group, include_extras=True)
    return tuple(
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    )


def _argument(parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    group = parameter.annotation
    if not is_dataclass(group) or not isinstance(group, type):
        return given[parameter.name]
    return group(**{field.name: given[field.name] for field in fields(group)})


def _guarded(function: Callable[..., None], arguments: Mapping[str, Any]) -> None:
    """Call the function inside its session; a known error ends the process with its exit code.

    Standard error gets a line for people, or a JSON object for programs.
    """
    session = next((value for value in arguments.values() if isinstance(value, Session)), None)
    try:
        with session or nullcontext():
            function(**arguments)
    except (RqschedError, RedisError, DatabaseError) as error:
        known = error if isinstance(error, RqschedError) else BackendUnavailableError()
        message = explain(error)
        is_table = session is None or session.output is Output.TABLE
        line = f"Error: {message}" if is_table else dump({"error": known.code, "message": message})
        sys.stderr.write(line + "\n")
        raise typer.Exit(known.exit_code) from None


def explain(error: Exception) -> str:
    """Return an error as one line; drivers' errors without their statements."""
    if isinstance(error, DatabaseError):
        text = f"the database returned an error: {getattr(error, 'orig', None) or error}"
    elif isinstance(error, RedisError):
        text = f"Redis does not answer: {error}"
    else:
        text = " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
    return " ".join(text.split())
