"""`python -m tests.support.path_proxy PORT UPSTREAM_PORT PATH keeps|takes [--says]`: a proxy that serves below a path.

It takes the path away or keeps it, as `location /path/` of nginx does with and without a slash behind `proxy_pass`, and
names it in X-Forwarded-Prefix with `--says`.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_OWN = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server", "x-forwarded-prefix"}


class _Handler(BaseHTTPRequestHandler):
    upstream: int
    path_of_ours: str
    keeps: bool
    says: bool

    def _forward(self) -> None:
        path = self.path
        if path != self.path_of_ours and not path.startswith((f"{self.path_of_ours}/", f"{self.path_of_ours}?")):
            self.send_error(404, "not below the path")
            return
        if not self.keeps:
            path = path.removeprefix(self.path_of_ours) or "/"
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        headers["X-Forwarded-For"] = self.client_address[0]
        if self.says:
            headers["X-Forwarded-Prefix"] = self.path_of_ours
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        connection.request(self.command, path, body or None, headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_POST = _forward  # noqa: N815 - the names of http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing."""


def main(port: str, upstream: str, path: str, way: str, *flags: str) -> None:
    """Serve until killed."""
    _Handler.upstream, _Handler.path_of_ours = int(upstream), path
    _Handler.keeps, _Handler.says = way == "keeps", "--says" in flags
    ThreadingHTTPServer(("127.0.0.1", int(port)), _Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
