"""The command `ping`: check that the workers of this machine are alive.

It loads few modules, because probes call it every few seconds.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rqsched.run.vital_signs import RUN_DIR, Answer, ask_all, run_folder, too_long

app = typer.Typer(add_completion=False)

_DEAD = 1
_BEGINS_NOTHING = {
    "waits_for_writes": "waits for a database that takes writes: `rqsched doctor` says why this one takes none",
    "is_frozen": "begins nothing: it was started with RQSCHED_FREEZE or --freeze",
}
"""The text for each state in which a child is alive but starts no work."""


@app.command()
def ping(
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long a process may take to answer.")
    ] = 5.0,
    ready: Annotated[
        bool, typer.Option("--ready", help="Fail also while one starts, or is about to end; for startup probes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what each says, an object a line.")] = False,
) -> None:
    """Ask the processes of this machine whether they live.

    It is made for probes. It asks the workers and dispatchers of this user, and each `rq worker` with a dispatcher. In
    a container, it asks only processes inside the container. Exit code 1 if there is none, or if one does not answer.
    It asks no server, so a worker that waits for Redis or SQL counts as alive. The line of a process shows if its
    database is a standby, or if its settings freeze it.
    """
    folder = run_folder(Path(os.environ[RUN_DIR]) if os.environ.get(RUN_DIR) else None)
    try:
        answers = list(ask_all(folder, timeout))
    except OSError as error:
        _end(f"{error}.")
    for answer in answers:
        print(_json(answer) if as_json else _line(answer, timeout))  # noqa: T201 - the output
    if not answers:
        if (refused := too_long(folder)) is not None:
            _end(f"none can be asked here: {refused}.")
        _end(
            f"no worker or dispatcher of this user runs here; looked for their sockets in {folder}. Of RQ's "
            "own workers, only those with a dispatcher answer; `rq info` shows the others."
        )
    if any(answer.state is None or (ready and not _is_ready(answer)) for answer in answers):
        raise typer.Exit(_DEAD)


def _end(why: str) -> None:
    sys.stderr.write(f"Error: {why}\n")
    raise typer.Exit(_DEAD)


def _is_ready(answer: Answer) -> bool:
    state = answer.state or {}
    return bool(state["is_ready"] and not state["is_stopping"])


def _json(answer: Answer) -> str:
    return json.dumps({"name": answer.name, "is_alive": answer.state is not None, **(answer.state or {})})


def _line(answer: Answer, timeout: float) -> str:
    if answer.state is None:
        return f"{answer.name} does not answer within {timeout:g} s"
    children = ", ".join(f"{one['role']} {one['pid']}" for one in answer.state["children"])
    mood = "is about to end" if answer.state["is_stopping"] else "is alive" if _is_ready(answer) else "starts"
    told = [text for name, text in _BEGINS_NOTHING.items() if any(one.get(name) for one in answer.state["children"])]
    return "; ".join([f"{answer.name} {mood} ({children})", *told])
