"""RQ gets its own Redis clients, because its `Worker` changes the timeout of the pool that it is given.

With that timeout, a call of a web process would wait minutes for a hanging Redis, and its breaker would never open.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rq import SimpleWorker

from rqsched.api import health
from rqsched.errors import ConfigError
from rqsched.kernel.transport.client import for_rq
from rqsched.run.worker import WorkerOptions, require_free_names
from rqsched.testing import execute_pending
from tests.contract.sources import PACKAGE, imports_of, name_of
from tests.http.conftest import make_web, web
from tests.support.web import Web, at

__all__ = ["make_web", "web"]
WORKERS = {"run/rq_worker.py", "run/runner.py", "kernel/transport/redelivery.py"}
"""Parts of RQ's own workers, whose clients are opened for them alone."""


def test_every_client_that_rq_is_given_has_timeouts_of_its_own() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if str(path.relative_to(PACKAGE)) not in WORKERS]
    given = [(path.name, text) for path in paths for text in _given_to_rq(path)]
    assert len(given) > 5
    assert [(name, text) for name, text in given if not text.endswith(".connection") and "for_rq(" not in text] == []


def _given_to_rq(path: Path) -> Iterator[str]:
    """Yield each connection that a file passes to RQ's classes and functions, and to subclasses of them."""
    targets = [found.target for found in imports_of(name_of(path), path)]
    of_rq = {target.rpartition(".")[2] for target in targets if target.split(".")[0] == "rq"}
    if not of_rq:
        return
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and of_rq & {ast.unparse(base) for base in node.bases}:
            of_rq.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _first_name(node.func) in of_rq:
            yield from (ast.unparse(one.value) for one in node.keywords if one.arg == "connection")
            if ast.unparse(node.func) == "send_stop_job_command":
                yield ast.unparse(node.args[0])


def _first_name(node: ast.expr) -> str | None:
    """Return the name that an expression of dotted names begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _read_pages(web: Web) -> None:
    for page in ("/", "/system"):
        assert web.get(page).status_code == 200


def _look_for_name(web: Web) -> None:
    with pytest.raises(ConfigError, match="is alive"):
        require_free_names(web.env.runtime, WorkerOptions(name="theirs"))


def _examine(web: Web) -> None:
    assert {"workers", "dispatchers", "failed links"} <= {found.check for found in health.examine(web.env.runtime)}


def _execute(web: Web) -> None:
    web.post(at(operation="trigger/"))
    assert execute_pending(web.env.scheduler) == 1


def _stop(web: Web) -> None:
    run = web.env.fire_next(web.env.scheduler.get("report")).refresh().state
    web.env.transport.stop(run)
    web.env.transport.mark_failed(run)


@pytest.mark.parametrize("hand", [_read_pages, _look_for_name, _examine, _execute, _stop])
def test_client_that_was_handed_to_rq_waits_no_longer_than_before(web: Web, hand: Callable[[Web], None]) -> None:
    other = SimpleWorker("default", name="theirs", connection=for_rq(web.env.redis))
    other.register_birth()
    pool = web.env.redis.connection_pool
    pool.connection_kwargs |= {"socket_timeout": 1.0}
    pool.disconnect()
    pool.reset()
    web.create()
    before = dict(pool.connection_kwargs)

    hand(web)

    assert pool.connection_kwargs == before
    connections = [pool.get_connection() for _ in range(8)]
    assert {one.socket_timeout for one in connections} == {1.0}
    for one in connections:
        pool.release(one)
