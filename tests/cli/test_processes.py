"""The command as a process of its own: the entry point, the working directory, a worker and its end."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest
from redis import Redis

from rqsched import OverlapPolicy
from rqsched.kernel.transport.telemetry import live_dispatchers
from tests.support.cli import Cli
from tests.support.processes import rqsched_command, start, wait_until
from tests.support.servers import free_port
from tests.support.tls import make_certificate

pytestmark = pytest.mark.usefixtures("cold_commands")
FLOWS = """
from rqsched import workflow

@workflow("touch")
def touch(path):
    open(path, "w").close()
"""


@pytest.fixture
def env(sqlite_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A user's folder with a module of workflows, and the variables that name it."""
    (tmp_path / "flows.py").write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    named = {"RQSCHED_DATABASE_URL": sqlite_url, "RQSCHED_REDIS_URL": redis_url, "RQSCHED_IMPORTS": "flows"}
    return {**os.environ, **named}


def run(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in rqsched_command(*words)]
    return subprocess.run(command, env=env, cwd=Path.cwd(), capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_exit_code(env: Mapping[str, str]) -> None:
    help_ = run(env, "--help")
    assert help_.returncode == 0
    text = " ".join(help_.stdout.split())
    assert all(f"{code} " in text.partition("Exit codes:")[2] for code in range(6))


def test_a_shell_completes_the_words_of_an_option(env: Mapping[str, str]) -> None:
    words = "rqsched trigger a --overlap "
    asked = {"_RQSCHED_COMPLETE": "complete_bash", "COMP_CWORD": "4", "COMP_WORDS": words}
    assert run({**env, **asked}).stdout.split() == list(OverlapPolicy)


def test_modules_of_the_working_directory_are_found(env: Mapping[str, str]) -> None:
    created = run(env, "create", "a", "flows.touch", "--every", "1h", "-o", "json")
    assert created.returncode == 0, created.stderr
    assert json.loads(created.stdout)["outcome"] == "created"


def test_a_worker_fires_executes_shows_itself_and_ends_in_order(
    env: Mapping[str, str], redis: Redis, tmp_path: Path
) -> None:
    target = tmp_path / "touched"
    kwargs = json.dumps({"path": str(target)})
    worker = start(rqsched_command("worker", "default"), log_path=tmp_path / "worker.log", env=env, cwd=tmp_path)
    try:
        assert run(env, "create", "a", "touch", "--every", "1s", "--kwargs", kwargs).returncode == 0
        wait_until(target.exists, what=lambda: f"a run\n{worker.log()}")
        wait_until(lambda: live_dispatchers(redis, "rqsched"), what="a dispatcher that shows itself")
        examined = run(env, "doctor")
        assert examined.returncode == 0, examined.stdout
    finally:
        code = worker.terminate(timeout=30)
    assert code == 0
    assert live_dispatchers(redis, "rqsched") == []


def test_web_without_its_extra_says_how_to_install_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rqsched.http", None)
    answer = cli("web", code=2)
    assert "pip install '.[http]'" in answer.err


def test_web_beyond_loopback_without_tokens_is_refused(cli: Cli) -> None:
    assert "RQSCHED_TOKENS" in cli("web", "--host", "0.0.0.0", code=2).err


@pytest.mark.broad
def test_web_serves_https(env: Mapping[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "web")
    port = free_port()
    tls = ["--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
    run(env, "db", "upgrade")
    web = start(rqsched_command("web", "--port", str(port), *tls), log_path=tmp_path / "web.log", env=env, cwd=tmp_path)
    try:
        trusted = ssl.create_default_context(cafile=str(made.certificate))
        wait_until(lambda: is_answered(f"https://127.0.0.1:{port}/healthz", trusted), what="an answer over TLS")
    finally:
        web.kill_tree()


def is_answered(url: str, trusted: ssl.SSLContext) -> bool:
    try:
        with urlopen(url, context=trusted, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_certificate_without_its_key_is_refused(env: Mapping[str, str], tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "web")
    refused = run(env, "web", "--tls-cert", str(made.certificate))
    assert refused.returncode == 2
    assert "--tls-cert and --tls-key go together" in refused.stderr
