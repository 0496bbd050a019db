"""How much is tried: `make test` tries what is likely to find something, `make proofs` (PROOFS=1) everything."""

from __future__ import annotations

import os

IS_PROOF = bool(os.environ.get("PROOFS"))
"""Whether everything is tried, at full size."""


def sized(everyday: int, proof: int) -> int:
    """Return how many there are: the first in `make test`, the second in `make proofs`."""
    return proof if IS_PROOF else everyday
