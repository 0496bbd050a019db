"""`rqsched web --workers N`: several processes at one address, one of which may die at any moment."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from redis import Redis

from rqsched import Every
from rqsched.kernel.transport.telemetry import PASSES, read_passes
from tests.support.processes import SOON, Process, kill_all, rqsched_command, run_to_end, wait_until
from tests.support.servers import free_port
from tests.support.serving import status_of
from tests.support.tls import make_certificate
from tests.support.web import one_token
from tests.system.acceptance.live import LiveEnv

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]
LIST = "/api/v1/schedules/"


@pytest.fixture
def port() -> int:
    return free_port()


def start_web(live: LiveEnv, port: int, *options: str, workers: int = 2) -> Process:
    return live.start(rqsched_command("web", "--port", str(port), "--workers", str(workers), *options))


def ping(live: LiveEnv) -> dict[str, Any]:
    """Return the supervisor's report about itself, empty before it answers."""
    asked = run_to_end(rqsched_command("ping", "--json"), live.environment).stdout.strip()
    return json.loads(asked) if asked else {}


def wait_until_ready(live: LiveEnv, web: Process) -> list[int]:
    """The pids of the children, once every event loop turns."""
    wait_until(lambda: ping(live).get("is_ready"), timeout=SOON, what=lambda: f"all children\n{web.log()}")
    return [child["pid"] for child in ping(live)["children"]]


def passes(redis: Redis) -> dict[str, float]:
    """The number of reconcile passes, and their repairs."""
    found = read_passes(redis, "rqsched")
    return {name: count for name, count in found.items() if not name.endswith("seconds")}


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_peer_on_loopback_does_not_escape_the_limit_of_unknown_tokens(live: LiveEnv, port: int) -> None:
    live.environment["RQSCHED_TOKENS"] = one_token("secret-0123456789ab", "read")
    live.environment["FORWARDED_ALLOW_IPS"] = "*"  # uvicorn's own setting
    web = start_web(live, port, workers=1)
    url = f"http://127.0.0.1:{port}{LIST}"
    wait_until(lambda: is_listening(port), timeout=SOON, what=lambda: f"the server\n{web.log()}")
    with httpx.Client(timeout=SOON, headers={"Authorization": "Bearer wrong-0123456789ab"}) as client:
        statuses = [client.get(url, headers={"X-Forwarded-For": f"1.1.1.{n}"}).status_code for n in range(60)]
    assert statuses[:20] == [401] * 20
    assert 429 in statuses


def test_a_killed_process_is_replaced_while_the_others_serve(live: LiveEnv, port: int) -> None:
    web = start_web(live, port)
    first, second = wait_until_ready(live, web)

    kill_all([psutil.Process(first)])

    assert {status_of(f"http://127.0.0.1:{port}{LIST}") for _ in range(20)} == {200}
    wait_until(lambda: first not in wait_until_ready(live, web), timeout=SOON, what="a successor")
    assert second in wait_until_ready(live, web)
    assert {status_of(f"http://127.0.0.1:{port}{LIST}") for _ in range(20)} == {200}
    web.signal(signal.SIGTERM)
    assert web.wait() == 0
    assert not psutil.pid_exists(second)


def test_one_of_the_processes_recovers_at_boot(live: LiveEnv, port: int, redis: Redis) -> None:
    live.note_every("nightly", Every("24h"))
    redis.flushall()
    web = start_web(live, port, workers=3)
    wait_until_ready(live, web)

    wait_until(lambda: passes(redis), timeout=SOON, what=lambda: f"a pass\n{web.log()}")

    web.signal(signal.SIGTERM)
    assert web.wait() == 0
    assert passes(redis) == {"checked": 1, "links": 1, PASSES: 1}


def test_all_of_them_end_with_requests_finished_and_their_address_is_free(live: LiveEnv, port: int) -> None:
    web = start_web(live, port)
    wait_until_ready(live, web)
    with httpx.stream("GET", f"http://127.0.0.1:{port}/api/v1/events/stream/", timeout=SOON) as stream:
        assert stream.status_code == 200
        web.signal(signal.SIGTERM)
        stream.read()  # its end is orderly: an abort would raise

    assert web.wait() == 0
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_no_process_outlives_a_supervisor_that_was_killed(live: LiveEnv, port: int) -> None:
    web = start_web(live, port)
    children = [psutil.Process(pid) for pid in wait_until_ready(live, web)]

    web.signal(signal.SIGKILL)

    psutil.wait_procs(children, timeout=SOON)
    assert [child for child in children if child.is_running()] == []


def test_they_serve_https(live: LiveEnv, port: int, tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "web")
    web = start_web(live, port, "--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    wait_until_ready(live, web)
    trusted = ssl.create_default_context(cafile=str(made.certificate))

    assert {httpx.get(f"https://127.0.0.1:{port}/healthz", verify=trusted).status_code for _ in range(5)} == {200}


def test_they_serve_a_unix_socket_whose_file_a_killed_process_left(live: LiveEnv, port: int, tmp_path: Path) -> None:
    del port
    path = tmp_path / "web.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    web = live.start([sys.executable, "-c", f"from rqsched.http import serve; serve(uds={str(path)!r}, workers=2)"])
    wait_until_ready(live, web)

    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
        assert {client.get("/healthz").status_code for _ in range(5)} == {200}
    web.signal(signal.SIGTERM)
    assert web.wait() == 0
    assert not path.exists()


def test_an_address_that_is_taken_ends_it_at_once(live: LiveEnv, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        web = start_web(live, port)

        assert web.wait() == 3
    assert "already in use" in web.log()


def test_settings_that_cannot_be_used_end_it_before_a_process_is_started(live: LiveEnv, port: int) -> None:
    live.environment["RQSCHED_TOKENS"] = "[{}]"
    web = start_web(live, port)

    assert web.wait() == 2
    assert "RQSCHED_TOKENS[0]" in web.log()
    assert "started with pid" not in web.log()
