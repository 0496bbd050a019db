"""A field that a handle shows: an attribute of what the handle has read, typed and documented in one line. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Generic, Never, NoReturn, Self, TypeVar, overload

T = TypeVar("T")


class Shown(Generic[T]):
    """A read-only field; `source` is the path from its handle, such as `description.status`.

    >>> class Handle:
    ...     text = "abc"
    ...     words = Shown[str]("text.__class__.__name__", "The kind of its text.")
    >>> Handle().words
    'str'
    """

    def __init__(self, source: str, doc: str) -> None:
        self.source = source
        self.__doc__ = doc
        self._read = attrgetter(source)

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: object, owner: type) -> T: ...
    def __get__(self, handle: object | None, owner: type) -> Any:
        return self if handle is None else self._read(handle)

    def __set__(self, handle: object, value: Never) -> NoReturn:
        raise AttributeError(f"{self.__name__} of {type(handle).__name__} is read-only")
