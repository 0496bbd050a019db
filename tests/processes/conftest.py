"""Fixtures of the processes' tests: those of the chain's."""

from tests.chain.conftest import runtime, scheduler

__all__ = ["runtime", "scheduler"]
