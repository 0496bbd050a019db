"""How much is tried: `make nightly` tries everything, the others the sizes that are likely to find something."""

from __future__ import annotations

import os

IS_NIGHTLY = bool(os.environ.get("NIGHTLY"))
"""Whether everything is tried, at full size."""


def sized(everyday: int, nightly: int) -> int:
    """Return how many there are: the second in `make nightly` (NIGHTLY=1), else the first."""
    return nightly if IS_NIGHTLY else everyday
