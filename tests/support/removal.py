"""A process without some features: `python -m tests.support.removal NAME,... MODULE`, or pytest's `-p` with WITHOUT.

A finder refuses the folder of each, so every import of it raises RemovedError. The features that import it cannot be
imported either. `features/list.py` is executed without the lines of all of these. The product has no such
option: its list is code.

Tests and the surfaces of NEEDS get stand-ins for what they cannot import. A stand-in raises UsedError when it is
called. A test that gets this error uses the feature on purpose, and the plugin skips it.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import re
import runpy
import sys
from abc import ABCMeta
from collections.abc import Generator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "rqsched"
FEATURES = tuple(sorted(path.parent.name for path in PACKAGE.glob("features/*/__init__.py")))
"""The folders of features."""
NEEDS = {
    "after": "api simulate",
    "backfill": "__init__ api types",
    "bulk": "api types",
    "calendars": "api types",
    "declarations": "__init__ api cli contrib dev importers simulate testing types",
    "external": "api",
    "fan_out": "api machines types",
    "freeze": "api",
    "hours": "api simulate",
    "limits": "api simulate types",
    "namespaces": "api types",
    "notifications": "api types",
    "pruning": "api types",
    "quotas": "api importers types",
    "retry_on_request": "api",
}
"""The parts of `rqsched` that still import a feature by its name. They are surfaces, and `testing`, which opens one."""
_LENDING = ("tests.", *(f"rqsched.{part}." for part in sorted({*" ".join(NEEDS.values()).split()})))
_OF_FEATURES = "rqsched.features."
_LIST = f"{_OF_FEATURES}list"
_IMPORT = re.compile(r"^from (rqsched\.features\.\S+) import (\w+)\n", re.MULTILINE)
_import = builtins.__import__


class RemovedError(ImportError):
    """A module of a removed feature was imported."""


class UsedError(Exception):
    """A test or a surface called a stand-in."""


def feature_of(module: str) -> str | None:
    """Return the feature whose folder a module is in."""
    name = module.removeprefix(_OF_FEATURES).partition(".")[0]
    return name if module.startswith(_OF_FEATURES) and name in FEATURES else None


def remove(*features: str) -> None:
    """Refuse the folders of features in this process, which has imported nothing of features yet."""
    assert {*features} <= {*FEATURES}, features
    assert not [name for name in sys.modules if name.startswith(_OF_FEATURES)]
    sys.meta_path.insert(0, _Finder(features))
    builtins.__import__ = _import_or_lend  # type: ignore[assignment]


_removed = set[str]()
"""The features whose lines the list of this process lacks."""


class _Finder(MetaPathFinder):
    """Refuses folders, and loads the list of features without the lines of features that cannot be imported."""

    def __init__(self, features: Sequence[str]) -> None:
        self._features = features

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if feature_of(fullname) in self._features:
            raise RemovedError(f"{fullname} is removed", name=fullname)
        if fullname == _LIST:
            file = str(PACKAGE / "features" / "list.py")
            return spec_from_file_location(fullname, file, loader=_ListLoader(fullname, file))
        return None


class _ListLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return compile(_without_removed(Path(self.path).read_text()), self.path, "exec")


def _without_removed(source: str) -> str:
    for module, name in _IMPORT.findall(source):
        try:
            importlib.import_module(module)
        except RemovedError:
            _removed.add(str(feature_of(module)))
            source = source.replace(f"from {module} import {name}\n", "")
            source, count = re.subn(rf"^ +{name}\(runtime\),.*\n", "", source, flags=re.MULTILINE)
            assert count == 1, name
    return source


def _import_or_lend(name: str, namespace: Any = None, *more: Any, **named: Any) -> Any:
    try:
        return _import(name, namespace, *more, **named)
    except RemovedError:
        importer = f"{(namespace or {}).get('__name__')}."
        if importer.startswith(_LENDING) and f"{name}.".startswith(_OF_FEATURES):
            return _StandInModule(name)
        raise


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _stand_in(name)


class _StandIn(ABCMeta):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_stand_in" in vars(cls):
            raise UsedError(f"{cls.__name__} is removed")
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if "is_stand_in" not in vars(cls) or name.startswith("_"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__name__}.{name}")


def _stand_in(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StandIn(name, (), {"is_stand_in": True})


def _uses_removed(error: BaseException) -> bool:
    """Whether a stand-in was called, or monkeypatch was told to replace a name of a removed feature."""
    if isinstance(error, UsedError) or str(error).startswith(f"import error in {_OF_FEATURES}"):
        return True
    return any(_uses_removed(cause) for cause in (error.__cause__, error.__context__) if cause is not None)


def _skip_if_removed() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Exception as error:
        if _uses_removed(error):
            pytest.skip("uses a removed feature")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that uses a removed feature."""
    return (yield from _skip_if_removed())


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, Any, Any]:
    """Skip the tests of a fixture that uses a removed feature."""
    return (yield from _skip_if_removed())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """Skip what fixtures check after a test by means of a removed feature."""
    return (yield from _skip_if_removed())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Skip a module that uses a removed feature while it is imported; the life of a schedule imports the kernel."""
    report = yield
    if report.failed and any(f"{error.__name__}: " in str(report.longrepr) for error in (RemovedError, UsedError)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, "Skipped: uses a removed feature")
    return report


if removed := os.environ.get("WITHOUT"):
    remove(*removed.split(","))

if __name__ == "__main__":
    _, removed, started, *sys.argv[1:] = sys.argv
    remove(*removed.split(","))
    runpy.run_module(started, run_name="__main__", alter_sys=True)
    assert not [name for name in sys.modules if feature_of(name) in removed.split(",")]
    print(json.dumps(sorted(_removed)))
