"""A value as the type that the test knows it has."""

from __future__ import annotations

from typing import TypeVar

_Value = TypeVar("_Value")


def present(value: _Value | None) -> _Value:
    """A value that is not None here."""
    assert value is not None
    return value


def text(answer: object) -> str:
    """Bytes that Redis answered, as text: its client's types do not know which answers are bytes."""
    assert isinstance(answer, bytes)
    return answer.decode()
