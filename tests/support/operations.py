"""Write `rqsched/client/operations.py` from the operations of the native surface and the scheduler's own signatures.

    python -m tests.support.operations

A test compares the file with what this writes.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rqsched import types
from rqsched.api.scheduler import Scheduler
from rqsched.http.native.operation import Operation, Parameter, parameters_of, words_of
from rqsched.http.native.router import OPERATIONS
from tests.support.processes import BIN

FILE = Path(types.__file__).parent / "client" / "operations.py"
HEAD = '''"""Operations of both clients, each a request of one entry of the native surface.

Written by `python -m tests.support.operations`: change the entry, or the scheduler's method, and write it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from rqsched.api.values import MAX_PAGE
from rqsched.client import responses
from rqsched.client.groups import AsyncGroup, Group, Sender, awaited, iterated
from rqsched.client.requests import Request, get, many, path_of, sent
from rqsched.types import {types}
from rqsched.client.views import RunView, ScheduleView
from rqsched.when.calendars import Calendar

if TYPE_CHECKING:
    from rqsched import OnResume
'''
READERS = {
    "None": "responses.nothing", "datetime": "responses.instant", "Calendar": "responses.calendar",
    "Freeze": "responses.freeze",
    "Thawed": "responses.thawed", "ThawPreview": "responses.thaw_preview", "Usage": "responses.usage",
}  # fmt: skip
"""The readers of results that are not read by the fields of their class; `s` at its end reads a list of them."""


def source() -> str:
    """Return the text of the file."""
    classes = {name: [one for one in OPERATIONS if class_of(one) == name] for name in sorted(map(class_of, OPERATIONS))}
    body = "".join(text for name, operations in classes.items() for text in group(name, operations))
    named = sorted({word for word in re.findall(r"\w+", re.sub(r'""".*?"""', "", body, flags=re.S)) if is_type(word)})
    text = HEAD.replace("{types}", ", ".join(named)) + body
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        done = subprocess.run(
            [BIN / "ruff", *command, "--quiet", "--stdin-filename", FILE, "-"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = done.stdout
    return text


def is_type(word: str) -> bool:
    return word in types.__all__ and word not in {class_of(one) for one in OPERATIONS}


def class_of(operation: Operation) -> str:
    """Return the name of the class that has an operation: that of its group, or that of the client's own."""
    if operation.owner.kind is not Scheduler:
        return operation.owner.kind.__name__.replace("Handle", "Operations")
    group, _, _ = operation.calls.rpartition(".")
    return getattr(Scheduler, group).__name__ if group else "Operations"


def group(name: str, operations: Sequence[Operation]) -> Iterator[str]:
    if operations[0].owner.kind is not Scheduler:
        view = name.replace("Operations", "View")
        yield f'\n\nclass {name}({view}):\n    """Operations on what a handle stands for."""\n\n    _client: Sender\n\n'
        yield from map(of_handle, operations)
        return
    about = "operations on the client itself" if name == "Operations" else f"see `rqsched.types.{name}`"
    base, asynchronous = ("Sender", "") if name == "Operations" else ("Group", "(AsyncGroup)")
    yield f'\n\nclass {name}({base}):\n    """The {name.lower()} of a client; {about}."""\n'
    listed = {one.calls for one in operations if hasattr(Scheduler, one.calls.split(".")[0]) and has_iter(one)}
    for one in operations:
        yield method(one)
        if one.calls in listed:
            yield iterating(one)
    yield f'\n\nclass Async{name}{asynchronous}:\n    """{name} whose operations are awaited."""\n\n'
    for one in operations:
        short = one.calls.rpartition(".")[2]
        yield f"    {short} = awaited({name}.{short})\n"
        if one.calls in listed:
            yield f"    iter = iterated({name}.iter)\n"


def has_iter(operation: Operation) -> bool:
    """Return whether the scheduler reads all pages of a list with `iter`."""
    return operation.calls.endswith(".list") and returns(operation).startswith("Page[")


def returns(operation: Operation) -> str:
    text = str(inspect.signature(operation.function).return_annotation)
    return re.sub(r"^(builtins\.)?list\[", "Sequence[", text)


def method(operation: Operation) -> str:
    parameters = parameters_of(operation)
    short, result = operation.calls.rpartition(".")[2], returns(operation)
    head = f"    def {short}({signature(parameters)}) -> {result}:\n"
    sender = "self._client" if "." in operation.calls else "self"
    return f"{head}{docstring(operation)}        return {sender}.send({request(operation, parameters, result)})\n\n"


def of_handle(operation: Operation) -> str:
    """Return a method of a handle: it reads something, changes what the handle stands for, or makes another run."""
    more, parameters = [], parameters_of(operation)
    verb, result = operation.path.strip("/").split("/")[-1], returns(operation)
    fields = ", ".join(f'"{one.name}": {value(one)}' for one in parameters)
    if operation.method == "GET":
        request = f'get(self._path("{verb}"), {reader(result)}, sent({{{fields}}}))'
    elif any(one.name == "idempotency_key" for one in parameters):
        request, result = f'self._make("{verb}", sent({{{fields}}}))', "Self"
    else:
        how = f"is_repeatable={operation.is_repeatable}"
        if "if_version" in inspect.signature(operation.function).parameters:
            more = [Parameter("if_version", "int | None", None, None, True, "The version that it must have.")]
            how = "if_version"
        request, result = f'self._edit("{verb}", sent({{{fields}}}), {how})', "Self"
    head = f"    def {operation.calls}({signature([*parameters, *more])}) -> {result}:\n"
    return f"{head}{docstring(operation, *more)}        return self._client.send({request})\n\n"


def iterating(operation: Operation) -> str:
    """Return the method that reads all pages."""
    kept = [one for one in parameters_of(operation) if one.name not in {"limit", "cursor"}]
    given = "".join(f"{one.name}={one.name}, " for one in kept)
    item = returns(operation).removeprefix("Page[").removesuffix("]")
    return (
        f"    def iter({signature(kept)}) -> Iterator[{item}]:\n"
        '        """Read all that `list` shows with these arguments, page by page."""\n'
        f"        return self._client._pages(lambda cursor: self.list({given}limit=MAX_PAGE, cursor=cursor))\n\n"
    )


def signature(parameters: Sequence[Parameter]) -> str:
    words, is_open = ["self"], True
    for one in parameters:
        if one.is_keyword and is_open:
            words.append("*")
            is_open = False
        default = "" if one.default is inspect.Parameter.empty else f" = {one.default!r}"
        words.append(f"{one.name}: {one.annotation}{default}")
    return ", ".join(words)


def docstring(operation: Operation, *more: Parameter) -> str:
    """Return the scheduler's words, with the arguments that a client takes."""
    words = words_of(operation.function)
    listed = [f"    {one.name}: {one.about}" for one in [*parameters_of(operation), *more]]
    wrapped = [textwrap.fill(line, 104, subsequent_indent=" " * 8) for line in listed if not line.endswith(": ")]
    whole = "\n".join([words, "", "Args:", *wrapped]) if wrapped else words
    text = textwrap.indent(whole, " " * 8).strip()
    end = "\n        " if "\n" in text else ""
    return f'        """{text}{end}"""\n'


def request(operation: Operation, parameters: Sequence[Parameter], result: str) -> str:
    path = ", ".join(
        part.strip("{}") if part.startswith("{") else f'"{part}"' for part in operation.path.strip("/").split("/")
    )
    others = [one for one in parameters if f"{{{one.name}}}" not in operation.path]
    fields = ", ".join(f'"{one.name}": {value(one)}' for one in others)
    given = f"sent({{{fields}}})" if fields else ""
    if operation.method == "GET":
        return f"get(path_of({path}), {reader(result)}{f', {given}' if given else ''})"
    where = "" if not given else f", {given}" if operation.has_body else f", params={given}"
    is_dry = any(one.name == "dry_run" for one in parameters)
    repeatable = ", is_repeatable=True" if operation.is_repeatable else ", is_repeatable=dry_run" if is_dry else ""
    return f'Request("{operation.method}", path_of({path}), {reader(result)}{where}{repeatable})'


def value(parameter: Parameter) -> str:
    return f"many({parameter.name})" if parameter.annotation == "Sequence[str]" else parameter.name


def reader(result: str) -> str:
    """Return the function that reads a result from a response."""
    kind, _, item = result.partition("[")
    item = item.removesuffix("]")
    if kind == "Sequence":
        return f"{READERS[item]}s" if item in READERS else f"responses.listed({item})"
    if kind == "Page":
        return f"responses.page({item})"
    return READERS.get(result, f"responses.one({result})")


if __name__ == "__main__":
    FILE.write_text(source())
