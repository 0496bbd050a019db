"""The dashboard beside `rqsched dev`: a child that serves it to this machine."""

from __future__ import annotations

import socket
from functools import partial

from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.processes.supervisor import Progress, Role

HOST = "127.0.0.1"
PORT = 8000
"""Where it is served when nothing else is."""
_SILENCE = 30.0


def web_role() -> tuple[Role, str] | None:
    """Return the child that serves the dashboard and its address; None where its extra is not installed."""
    try:
        from rqsched.dashboard import routes  # noqa: F401, PLC0415 - an optional extra
    except ModuleNotFoundError:
        return None
    port = _free_port()
    return Role("web", partial(_serve, port=port), _SILENCE), f"http://{HOST}:{port}/"


def _free_port() -> int:
    for wanted in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, wanted))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
    raise ConfigError(f"no port of {HOST} is free for the dashboard; close what listens there.")


def _serve(progress: Progress, *, port: int) -> None:
    """Serve until SIGTERM; each second the event loop shows that it turns."""
    import uvicorn  # noqa: PLC0415 - an optional extra

    from rqsched.http import create_app, run_server  # noqa: PLC0415 - an optional extra

    async def turn() -> None:
        progress.turn()

    app = create_app(settings=Settings())
    options = uvicorn.Config(
        app, HOST, port, log_config=None, server_header=False, callback_notify=turn, timeout_notify=1
    )
    run_server(options)
