"""Fixtures of the transport: those of the chain."""

from tests.chain.conftest import any_rig, make_rig, rig

__all__ = ["any_rig", "make_rig", "rig"]
