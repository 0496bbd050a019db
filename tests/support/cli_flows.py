"""Workflows the commands' tests name; importing this prints, as careless modules do."""

from __future__ import annotations

from rqsched import workflow

print("a user's module prints on import")


@workflow("cli-hello", queue="high", timeout=30)
def hello(name: str = "world") -> str:
    return f"hello {name}"


def unregistered() -> None:
    """Named by its dotted path."""


@workflow("cli-boom")
def boom() -> None:
    raise ValueError("no")


@workflow("cli-long")
def long(text: str) -> None:
    raise ValueError(text)
