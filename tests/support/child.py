"""How every process that the tests start begins."""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).resolve().parents[2]
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def begin() -> None:
    """Hear Ctrl-C, and end with the process that started this one (Linux only)."""
    # A shell that starts the tests in the background makes them, and the processes they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A killed pytest leaves no server behind.
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
