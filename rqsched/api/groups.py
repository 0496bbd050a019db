"""Groups: the operations on one noun, as an attribute of a scheduler or a client, such as `scheduler.limits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from rqsched.kernel.chain.runtime import Runtime

G = TypeVar("G")


class Group:
    """The base of the groups of a Scheduler."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def runtime(self) -> Runtime:
        """The runtime of this process: settings, SQL, Redis."""
        return self._runtime

    def _namespace(self, namespace: str | None) -> str:
        return self._runtime.settings.namespace if namespace is None else namespace


def _itself(owner: object) -> object:
    return owner


class Grouped(Generic[G]):
    """An attribute that is a group. Read from the class, it is the group's class, so `Scheduler.limits.set` works."""

    def __init__(self, kind: type[G], basis: Callable[[Any], object] = _itself) -> None:
        """`basis` returns the argument for the group's class; by default, the scheduler or client itself."""
        self._kind: Any = kind
        self._basis = basis

    @overload
    def __get__(self, owner: None, kind: type) -> type[G]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> G: ...
    def __get__(self, owner: object | None, kind: type) -> Any:
        return self._kind if owner is None else self._kind(self._basis(owner))
