"""The first process of a container (PID 1): a small parent of the command, which does what init does.

The kernel makes PID 1 the parent of every process whose own parent has ended, and gives it no signal that it has no
handler for. It knows nothing of what the command does.
"""

from __future__ import annotations

import contextlib
import os
import signal

_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_AWAITED = signal.valid_signals() - _OWN


def leave_first_process() -> None:
    """Continue in a child where this process is PID 1, which then forwards signals, reaps, and ends with the child.

    Call this before anything is imported that costs memory or starts a thread: PID 1 keeps what it has. Its exit status
    is the child's, 128 and the signal's number where a signal ended the child, as in a shell.
    """
    if os.getpid() != 1:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the child's exit status with it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # a terminal's Ctrl-C reaches one of the two
        _give_terminal(os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_serve(child))


def _give_terminal(group: int) -> None:
    with contextlib.suppress(OSError):  # there is none
        os.tcsetpgrp(0, group)


def _serve(child: int) -> int:
    """Forward every signal to the child until it has ended; returns the exit status for it."""
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
