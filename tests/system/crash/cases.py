"""One case: a flow in a child process to which something happens at exactly one step."""

from __future__ import annotations

import gc
import json
import os
import traceback
from dataclasses import dataclass
from typing import Any

from tests.system.crash.env import CrashEnv
from tests.system.crash.flows import Flow
from tests.system.crash.steps import DIED, Kind, Step, Steps, watch, watch_sql


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    seen: list[Step]
    """The steps it took; a child that died tells nothing."""
    error: str | None

    @property
    def has_died(self) -> bool:
        return self.code == DIED


def run_in_child(env: CrashEnv, flow: Flow, steps: Steps) -> Ended:
    """Run the flow in a fork of this process and wait for its end."""
    if env.runtime.database.dialect.name == "sqlite":
        env.runtime.database.close()  # SQLite's connections must not cross a fork
    reading, writing = os.pipe()
    gc.freeze()  # a child's collector must not touch, and so copy, every page of its parent
    pid = os.fork()
    if pid == 0:
        _be_child(env, flow, steps, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        report = pipe.read()
    _, status = os.waitpid(pid, 0)
    told: dict[str, Any] = json.loads(report) if report else {"seen": [], "error": None}
    seen = [Step(Kind(kind), text, logged) for kind, text, logged in told["seen"]]
    return Ended(os.waitstatus_to_exitcode(status), seen, told["error"])


def _be_child(env: CrashEnv, flow: Flow, steps: Steps, writing: int) -> None:
    """Never returns: whatever happens, the test session is not run a second time."""
    try:
        error = None
        try:
            _open_own_connections(env)
            steps.logs = env.logs
            watch(env.runtime, steps)
            env.watch_engine = lambda engine: watch_sql(engine, steps)
            env.survive = steps.strike_nowhere
            flow.act(env)
        except BaseException:  # noqa: BLE001 - told to the parent, which fails
            error = traceback.format_exc()
        report = {"seen": [(step.kind.value, step.text, step.logged) for step in steps.seen], "error": error}
        os.write(writing, json.dumps(report).encode())
    finally:
        os._exit(0)


def _open_own_connections(env: CrashEnv) -> None:
    """Leave the parent's connections alone, and keep its engine: the statements it has compiled serve every child."""
    database = env.runtime.database
    database._engine.dispose(close=False)
    database._pid = os.getpid()
