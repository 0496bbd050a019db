"""Serving the application alone: `rqsched web`."""

from __future__ import annotations

from typing import Any

import uvicorn

from rqsched.config import Settings
from rqsched.errors import ConfigError
from rqsched.http.app import create_app
from rqsched.http.auth import Tokens, is_loopback


def serve(host: str = "127.0.0.1", port: int = 8000, *, settings: Settings | None = None, **options: Any) -> None:
    """Serve until SIGTERM or Ctrl-C; `options` are uvicorn's.

    Raises ConfigError when `host` is not loopback and no token is configured, before anything is opened.
    """
    settings = settings or Settings()
    if not Tokens.of(settings) and not is_loopback(host):
        raise ConfigError(
            f"refused to serve {host!r} without tokens: everyone who reaches it could run code. "
            "Set RQSCHED_TOKENS, or serve 127.0.0.1."
        )
    app = create_app(settings=settings)
    uvicorn.run(app, host=host, port=port, log_config=None, server_header=False, **options)
