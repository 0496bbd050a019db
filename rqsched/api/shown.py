"""Define a field of a handle in one line, with its type and its documentation.

The field shows an attribute of the record that the handle has read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from operator import attrgetter
from typing import Any, Generic, Never, NoReturn, Self, TypeVar, overload

T = TypeVar("T")


class Shown(Generic[T]):
    """A read-only field of a handle. It shows the attribute of `_record` with the same name, or the one that `of`
    names.

    >>> from fractions import Fraction
    >>> class Handle:
    ...     _record = Fraction(1, 2)
    ...     numerator = Shown[int]("What is divided.")
    ...     divisor = Shown[int]("What it is divided by.").of("denominator")
    >>> Handle().numerator, Handle().divisor
    (1, 2)
    """

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc
        self.source = ""
        self._convert: Callable[[Any], Any] | None = None

    def of(self, source: str, convert: Callable[[Any], Any] | None = None) -> Self:
        """Return the same field with another source: the path from the record, such as `status.value`.

        `convert` turns the value at the source into the shown value.
        """
        same = copy(self)
        same.source, same._convert = source, convert
        return same

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name
        self.source = self.source or name
        self._read = attrgetter(f"_record.{self.source}")

    @overload
    def __get__(self, handle: None, owner: type) -> Self: ...
    @overload
    def __get__(self, handle: object, owner: type) -> T: ...
    def __get__(self, handle: object | None, owner: type) -> Any:
        if handle is None:
            return self
        found = self._read(handle)
        return found if self._convert is None else self._convert(found)

    def __set__(self, handle: object, value: Never) -> NoReturn:
        raise AttributeError(f"{self.__name__} of {type(handle).__name__} is read-only")
