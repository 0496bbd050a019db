"""A receiver of webhooks and heartbeats: a real HTTP server in a process of its own.

What it got lies in a file, one JSON line a request, so that tests read it whatever becomes of the process. How it
answers stands in another file: a status, `hang`, or `redirect:URL`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HANG, OK = "hang", "200"


@dataclass(frozen=True)
class Receiver:
    """A receiver that runs."""

    folder: Path
    url: str

    def answer(self, how: str) -> None:
        """It answers like this from now on."""
        (self.folder / "answer").write_text(how)

    @property
    def got(self) -> list[dict[str, Any]]:
        """Every request so far: path, headers in lower case, body."""
        found = self.folder / "got"
        return [json.loads(line) for line in found.read_text().splitlines()] if found.exists() else []

    @property
    def paths(self) -> list[str]:
        return [request["path"] for request in self.got]


@contextmanager
def receiver(folder: Path) -> Iterator[Receiver]:
    """A receiver runs while the block does."""
    (folder / "answer").write_text(OK)
    command = [sys.executable, "-m", "tests.support.receiver", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Receiver(folder, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    folder: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        line = json.dumps({"path": self.path, "headers": headers, "body": body.decode(errors="replace")})
        with (self.folder / "got").open("a") as file:
            file.write(line + "\n")
        how = (self.folder / "answer").read_text()
        if how == HANG:
            threading.Event().wait()
        where = how.partition("redirect:")[2]
        self.send_response(302 if where else int(how))
        if where:
            self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - as http.server names it

    def log_message(self, *_: Any) -> None: ...


def _serve(folder: Path) -> None:
    _Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
