"""`rqsched web` before anonymous connections that send half a request, with few descriptors."""

from __future__ import annotations

import select
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.processes import Process, rqsched_command, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.support.tls import make_certificate
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
DESCRIPTORS = 128
HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
DEADLINE = 5.0
"""Seconds that a head may take; a busy machine may notice later, and never much earlier."""
SOON = 30.0
LIMIT = ["bash", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "-"]


@pytest.fixture
def port(live: LiveEnv) -> int:
    live.environment["RQSCHED_RUN_DIR"] = str(live.folder / "run")
    return free_port()


def start_web(live: LiveEnv, port: int, *options: str) -> Process:
    web = live.start([*LIMIT, *rqsched_command("web", "--port", str(port), *options)])
    scheme = "https" if "--tls-cert" in options else "http"
    wait_until(lambda: is_healthy(port, scheme), what=lambda: f"rqsched web:\n{web.log()}")
    return web


def is_healthy(port: int, scheme: str = "http") -> bool:
    return status_of(f"{scheme}://127.0.0.1:{port}/healthz", timeout=SOON, verify=False) == 200


@contextmanager
def half_requests(port: int, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON))
            with suppress(OSError):  # the server may have closed it by now
                one.sendall(HALF)
            found.append(one)
        yield found


def is_closed(one: socket.socket) -> bool:
    """Whether the server has closed a connection that it does not answer."""
    if not select.select([one], [], [], 0)[0]:
        return False
    with suppress(ConnectionError):
        assert one.recv(1) == b""
    return True


@pytest.mark.parametrize("options", [[], ["--max-connections", "60"], ["--workers", "2"]], ids=" ".join)
def test_half_requests_beyond_the_descriptors_silence_nobody(live: LiveEnv, port: int, options: list[str]) -> None:
    web = start_web(live, port, *options)
    with half_requests(port, 200) as halves:
        assert is_healthy(port), web.log()
        assert sum(not is_closed(one) for one in halves) <= (60 if "60" in options else DESCRIPTORS * 2)
        wait_until(lambda: all(is_closed(one) for one in halves), timeout=SOON, what="the end of each")
        assert is_healthy(port)
    assert "Traceback" not in web.log()
    assert len(web.log()) < 10_000
    assert web.log().count("WARNING") <= (2 if "--workers" in options else 1), web.log()


def test_handshakes_of_tls_that_do_not_go_on_are_given_up(live: LiveEnv, port: int, tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "web")
    web = start_web(live, port, "--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON)) for _ in range(200)]
        wait_until(lambda: all(is_closed(one) for one in silent), timeout=DEADLINE + SOON, what="the end of each")
        assert is_healthy(port, "https")
    assert "Traceback" not in web.log()
    assert len(web.log()) < 10_000


def test_a_head_that_arrives_in_drips_is_given_up_and_an_idle_connection_goes_on(live: LiveEnv, port: int) -> None:
    web = start_web(live, port)
    with half_requests(port, 1) as (half,), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SOON) as client:
        drips = iter("X-A: " + "a" * 10_000)

        def is_over() -> bool:
            with suppress(ConnectionError):
                half.sendall(next(drips).encode())
            return is_closed(half)

        wait_until(is_over, timeout=DEADLINE + SOON, interval=0.1, what="the end of a head that never ends")
        assert client.get("/healthz").status_code == 200
    assert "Traceback" not in web.log()


def test_a_body_that_drips_after_the_answer_is_given_up(live: LiveEnv, port: int) -> None:
    start_web(live, port)
    with half_requests(port, 1) as (connection,):
        connection.sendall(b"Content-Length: 100000000\r\n\r\n{")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413")

        def is_over() -> bool:
            try:
                connection.sendall(b"x")
                return select.select([connection], [], [], 0)[0] != [] and connection.recv(1) == b""
            except ConnectionError:
                return True

        wait_until(is_over, timeout=DEADLINE + SOON, interval=0.1, what="the end of a body that nobody reads")


def test_a_request_in_two_parts_and_two_in_one_part_are_answered(live: LiveEnv, port: int) -> None:
    start_web(live, port)
    with half_requests(port, 1) as (one,):
        one.sendall(b"\r\n" + HALF + b"\r\n" + HALF)
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 2:
            answered += one.recv(65_536)
        one.sendall(b"Connection: close\r\n\r\n")
        while more := one.recv(65_536):
            answered += more
        assert answered.count(b"HTTP/1.1 200") == 3


EXHAUSTED = """
    import logging, os, sys
    import uvicorn
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from rqsched.http import create_app, run_server

    logging.basicConfig(level="INFO")
    taken = []

    def take(request):
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return PlainTextResponse("taken")

    def give(request):
        while taken:
            os.close(taken.pop())
        return PlainTextResponse("given")

    app = create_app()
    app.router.routes[:0] = [Route("/take", take), Route("/give", give)]
    run_server(uvicorn.Config(app, port=int(sys.argv[1]), log_config=None))
"""


def test_accept_errors_are_logged_once_and_end_with_their_cause(live: LiveEnv, port: int, tmp_path: Path) -> None:
    script = tmp_path / "exhausted.py"
    script.write_text(textwrap.dedent(EXHAUSTED))
    web = live.start([*LIMIT, sys.executable, script, str(port)])
    wait_until(lambda: is_healthy(port), what=lambda: f"the server:\n{web.log()}")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SOON) as client, ExitStack() as stack:
        assert client.get("/take").text == "taken"
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON))
        wait_until(lambda: "descriptor" in web.log(), what=lambda: f"a line of it:\n{web.log()}")
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
        assert client.get("/give").text == "given"
        wait_until(lambda: is_healthy(port), what="new connections are accepted")
    assert "Traceback" not in web.log()
    assert web.log().count("descriptor") == 1
