"""The command `doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from rqsched.cli.checks import Finding, Level, examine
from rqsched.cli.command import FAILED, Session, command

app = typer.Typer(add_completion=False)

COLUMNS = ("Check", "Status", "Found", "What To Do")


@command(app)
def doctor(session: Session) -> None:
    """Check versions, servers, schema, clocks, workers and links, and say what to do. Exit code 1 on a problem."""
    findings = list(examine(lambda: session.settings))
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    writer = session.writer
    if writer.is_lines:
        writer.lines(asdict(finding) for finding in findings)
    elif not writer.is_table:
        writer.json({"ok": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        writer.table(COLUMNS, [(f.check, f.level.value, f.detail, f.advice) for f in findings])
        writer.say(_summary(findings, problems))
    if problems:
        raise typer.Exit(FAILED)


def _summary(findings: list[Finding], problems: list[Finding]) -> str:
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if not problems and not warnings:
        return "Everything is fine."
    return f"{len(problems)} problem(s), {warnings} warning(s)."
