"""`manage.py rqsched ...`: every command of `rqsched`, with Django set up and the project's settings."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from rqsched.cli.app import app


class Command(BaseCommand):
    """Pass the arguments to `rqsched` unchanged: `manage.py rqsched list --help` is `rqsched list --help`."""

    help = "Every command of rqsched: `manage.py rqsched --help` lists them."
    requires_system_checks: Sequence[str] = ()
    words: tuple[str, ...] = ()
    """Words that are inserted before the arguments."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from a shell, with the exit codes of `rqsched`. Django handles `--settings` and `--pythonpath`."""
        django = ArgumentParser(add_help=False, allow_abbrev=False)
        django.add_argument("--settings")
        django.add_argument("--pythonpath")
        arguments = django.parse_known_args(argv[2:])[1]
        connections.close_all()  # a worker forks, and its children must not share a connection
        app([*self.words, *arguments], prog_name=f"{argv[0]} {argv[1]}")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Accept all arguments of `call_command`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run from `call_command("rqsched", ...)`; raises CommandError with the exit code."""
        code = app([*self.words, *options["arguments"]], prog_name="manage.py rqsched", standalone_mode=False)
        if code:
            raise CommandError(f"rqsched {' '.join(options['arguments'])} failed.", returncode=code)
