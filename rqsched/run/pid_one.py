"""The first process of a container (PID 1). It is a small parent of the command, and does the work of init.

The kernel makes PID 1 the parent of every process whose own parent has ended. PID 1 gets only signals that it handles.
This file knows nothing about the command.
"""

from __future__ import annotations

import contextlib
import os
import signal

_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_AWAITED = signal.valid_signals() - _OWN


def leave_first_process() -> None:
    """If this process is PID 1, continue in a child; PID 1 then forwards signals, reaps children, and ends with its
    child.

    Call this before any import that costs memory or starts a thread, because PID 1 keeps both. The exit status of PID 1
    is the child's, or 128 plus the signal's number if a signal ended the child, as in a shell.
    """
    if os.getpid() != 1:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the child's exit status would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # so that a terminal's Ctrl-C reaches only the child
        with contextlib.suppress(OSError):  # there is no terminal
            os.tcsetpgrp(0, os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_serve(child))


def _serve(child: int) -> int:
    """Forward every signal to the child until the child has ended; returns the exit status for PID 1."""
    while True:
        number = signal.sigwait(_AWAITED)
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == child:
                    status = os.waitstatus_to_exitcode(ended[1])
                    return status if status >= 0 else 128 - status
