"""The command `doctor`: check the settings and the servers, and then show the findings of `api.health`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import typer

import rqsched
from rqsched.api import health
from rqsched.api.database import Database, Patience, with_connect_timeout
from rqsched.api.health import Finding, Level
from rqsched.api.outages import explain
from rqsched.api.runtime import Runtime, import_workflows, make_runtime
from rqsched.api.values import number_of
from rqsched.cli.command import FAILED, Session, command
from rqsched.config import Settings
from rqsched.embedded import resolve_urls
from rqsched.errors import ConfigError, in_words

app = typer.Typer(add_completion=False)

COLUMNS = ("Check", "Status", "Found", "What To Do")
_PACKAGES = ("rq", "redis", "SQLAlchemy", "croniter", "tzdata")
_SECONDS = 3
"""How long a server may take to answer."""


@command(app)
def doctor(session: Session) -> None:
    """Check servers, schema, clocks and workers; say what to do. Exit code 1 on a problem."""
    findings = [_shown(finding) for finding in _examine(lambda: session.settings)]
    problems, warnings = (sum(one["level"] == level for one in findings) for level in (Level.PROBLEM, Level.WARNING))
    writer = session.writer
    if writer.is_lines:
        writer.lines(findings)
    elif not writer.is_table:
        writer.json({"ok": not problems, "findings": findings})
    else:
        writer.table(COLUMNS, [tuple(finding.values()) for finding in findings])
        is_fine = not problems and not warnings
        wrong = f"{number_of(problems, 'problem')}, {number_of(warnings, 'warning')}."
        writer.say("Everything is fine." if is_fine else wrong)
    if problems:
        raise typer.Exit(FAILED)


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level.value,
        "detail": finding.told,
        "advice": finding.advice,
    }


def _examine(read_settings: Callable[[], Settings]) -> Iterator[Finding]:
    """Yield one finding per check, the most basic first. If the settings or a server fail, the rest is not checked."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    told = f"rqsched {rqsched.__version__}, Python {platform.python_version()}, {packages}"
    yield Finding(Level.OK, told, check="versions")
    try:
        settings = read_settings()
    except ConfigError as error:
        advice = "Set it for every process alike."
        yield Finding(Level.PROBLEM, explain(error), advice=advice, check="settings")
        return
    yield health.asked("imports", lambda: _imports(settings), "Fix the module, or remove it from RQSCHED_IMPORTS.")
    try:
        runtime = _open(settings)
    except health.BACKEND_ERRORS as error:
        is_setting = isinstance(error, ConfigError)
        advice = (
            "Correct it, for every process alike." if is_setting else "Set RQSCHED_DATABASE_URL and RQSCHED_REDIS_URL."
        )
        yield Finding(Level.PROBLEM, explain(error), advice=in_words(advice), check="servers")
        return
    with closing(runtime):
        yield from health.examine(runtime)


def _imports(settings: Settings) -> Finding:
    import_workflows(settings)
    return Finding(Level.OK, ", ".join(settings.imports) or "none")


def _open(settings: Settings) -> Runtime:
    """Open a runtime with short timeouts, because doctor must soon report a server that does not answer."""
    urls = resolve_urls(settings)
    patience = Patience(total=timedelta(seconds=_SECONDS))
    database = Database(
        with_connect_timeout(urls.database_url, _SECONDS), patience=patience, pooler=settings.database_pooler
    )
    runtime = make_runtime(settings, database=database)
    runtime.transport.redis.connection_pool.connection_kwargs |= {
        "socket_connect_timeout": _SECONDS,
        "socket_timeout": _SECONDS,
    }
    return runtime
