"""A workflow that names targets, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rqsched import current_run
from rqsched.chain.fanout import batch_of, fan_out
from rqsched.workflows import FannedOut, make_workflow
from tests.support.env import Env


def sweep(env: Env, each: Callable[[str], bool] = bool) -> None:
    """The workflow `note` names two targets from now on."""

    def run() -> FannedOut:
        return FannedOut(targets=fan_out(env.runtime, batch_of(env.runtime, current_run().uid), [["one", "two"]]))

    env.registry.add(replace(make_workflow("note", run), each=each))
