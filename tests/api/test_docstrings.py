"""The examples in docstrings run as they stand, on a scheduler that has the schedule `nightly`."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import rqsched
from rqsched import types
from rqsched.workflows import make_workflow, registry
from tests.support.env import Env

NEEDS_AN_EXTRA = ("rqsched.machines", "rqsched.http", "rqsched.contrib", "rqsched.kernel.store.migrations")


def modules() -> Iterator[str]:
    yield rqsched.__name__
    for found in pkgutil.walk_packages(rqsched.__path__, f"{rqsched.__name__}."):
        if not found.name.startswith(NEEDS_AN_EXTRA):
            yield found.name


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    found = [test for name in modules() for test in finder.find(importlib.import_module(name), name)]
    return [test for test in found if any(doctest.SKIP not in one.options for one in test.examples)]


@pytest.fixture
def invoice_sync(env: Env) -> Iterator[None]:
    """The workflow of the examples, where `env` and where `Scheduler.from_env()` look for it."""
    env.register("invoice-sync", print)
    registry.add(make_workflow("invoice-sync", print))
    yield
    registry.remove("invoice-sync")


@pytest.mark.usefixtures("invoice_sync")
@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_example_of_a_docstring_runs(env: Env, monkeypatch: pytest.MonkeyPatch, example: doctest.DocTest) -> None:
    settings = env.scheduler.settings
    monkeypatch.setenv("RQSCHED_DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("RQSCHED_REDIS_URL", str(settings.redis_url))
    if "create(" not in (example.docstring or ""):
        env.create("nightly", rqsched.Cron("0 2 * * *"), "invoice-sync")
    names = {name: getattr(module, name) for module in (rqsched, types) for name in module.__all__}
    example.globs = {**names, **example.globs, "scheduler": env.scheduler}
    told: list[str] = []

    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=told.append)

    assert told == []
