"""A receiver of webhooks and heartbeats: a real HTTP server in a process of its own.

It writes each request as a JSON line to a file, so that tests can read them even if the process dies. Another file
sets its answer: a status, `hang`, `redirect:URL`, or an endless answer. Endless answers send a byte of the headers or
of the body now and then (`drip`, `drip-body`), or `100 Continue` now and then or as fast as possible (`continue`,
`flood`). They end when the content of the file changes.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process of a receiver does without it
    from tests.support.tls import Certificate

HANG, OK = "hang", "200"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ENDLESS = {
    "drip": (b"HTTP/1.1 200 OK\r\nX-Drip: ", b"x", 0.05),
    "drip-body": (b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n", b"x", 0.05),
    "continue": (b"", _CONTINUE, 0.05),
    "flood": (b"", 100 * _CONTINUE, 0.0),
}
"""The beginning of an endless answer, its repeated part, and the seconds between."""


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
        """Every request so far: path, headers in lower case, body, and the body's bytes as `hex`."""
        found = self.folder / "got"
        written = found.read_text() if found.exists() else ""
        return [json.loads(line) for line in written.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def paths(self) -> list[str]:
        return [request["path"] for request in self.got]


@contextmanager
def receiver(folder: Path, certificate: Certificate | None = None) -> Iterator[Receiver]:
    """A receiver runs while the block does, over TLS when it has a certificate."""
    (folder / "answer").write_text(OK)
    shown = [] if certificate is None else [str(certificate.certificate), str(certificate.key)]
    command = [sys.executable, "-m", "tests.support.receiver", str(folder), *shown]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Receiver(folder, f"{'https' if shown else 'http'}://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    one_at_a_time = threading.Lock()
    """A long line is written in parts: two requests may not mix theirs."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        told = {"path": self.path, "headers": headers, "body": body.decode(errors="replace"), "hex": body.hex()}
        line = json.dumps(told)
        with self.one_at_a_time, (self.folder / "got").open("a") as file:
            file.write(line + "\n")
        how = (self.folder / "answer").read_text()
        if how == HANG:
            threading.Event().wait()
        if how in ENDLESS:
            self._answer_without_end(how)
            return
        where = how.partition("redirect:")[2]
        self.send_response(302 if where else int(how))
        if where:
            self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer_without_end(self, how: str) -> None:
        first, again, pause = ENDLESS[how]
        self.close_connection = True
        with suppress(OSError):
            self.wfile.write(first)
            while (self.folder / "answer").read_text() == how:
                self.wfile.write(again)
                threading.Event().wait(pause)

    do_GET = do_POST  # noqa: N815 - as http.server names it

    def log_message(self, *_: Any) -> None: ...


def _serve(folder: Path, *shown: str) -> None:
    _Handler.folder = folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if shown:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*shown)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), *sys.argv[2:])
