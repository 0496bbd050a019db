"""Follow a section of a page in a real installation: its blocks of commands are run, in order, as written.

A command that looks, such as `rqsched doctor`, is repeated until it prints what the page says, as a person looks again;
every other one is run once. `rqsched worker &` starts one that lives as long as the installation. A value that is the
reader's own, after `export NAME=`, is that of the installation; one that begins with `$` is what it says.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from tests.support.processes import BIN, REPOSITORY, SOON, Process, Processes, kill_all, process_tree, start, wait_until
from tests.system.acceptance.snippets import EXPORT, Snippet, SnippetError, commands_of, is_said, snippets_of, status_of

RUNBOOKS, PLANNED, UPGRADING = (REPOSITORY / "docs" / f"{name}.md" for name in ("runbooks", "planned", "upgrading"))
PAGES = (RUNBOOKS, PLANNED, UPGRADING)
"""The pages whose commands are run in the situation they describe. The titles of sections are unique across pages."""
OFTEN = {"RQSCHED_RECONCILE_INTERVAL": "2", "RQSCHED_HEARTBEAT_INTERVAL": "1", "RQSCHED_REPAIR_GRACE": "1"}
"""Short intervals, so that tests need not wait. The page gives the times with default settings."""
_LOOKS = {"doctor", "ping", "why", "list", "describe", "upcoming", "runs", "run", "history"}
_LOOKS_ELSEWHERE = re.compile(r"^redis-cli .* (GET|INFO) |FROM pg_stat_replication")
_IS_OURS = re.compile(r"(\w+=\S+ )*rqsched ")
_SAY_IT_BY_STATUS = {"doctor", "ping"}
"""Commands that end with 1 if they find a problem, which is a valid answer."""


def sections(*pages: Path) -> dict[str, list[Snippet]]:
    """The steps below each heading of the pages, or of all, that has some."""
    found = dict[str, list[Snippet]]()
    for page in pages or PAGES:
        found |= _sections(page)
    return found


def _sections(page: Path) -> dict[str, list[Snippet]]:
    text, title, is_code = page.read_text(), "", False
    steps = {one.line: one for one in snippets_of(text) if one.language == "console"}
    found = defaultdict[str, list[Snippet]](list)
    for number, line in enumerate(text.splitlines(), 1):
        if number in steps:
            found[title].append(steps[number])
        if line.startswith("```"):
            is_code = not is_code
        elif line.startswith("#") and not is_code:
            title = line.lstrip("# ")
    return dict(found)


@dataclass
class Runbook:
    """One section on its way through one installation; after the block each of its steps has been done."""

    live: Processes
    title: str
    values: Mapping[str, str] = field(default_factory=dict)
    """The variables that the section's `export` lines set."""
    done: int = field(default=0, init=False)

    def __enter__(self) -> Runbook:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            left = sections()[self.title][self.done :]
            assert not left, f"left undone of {self.title!r}: {left[0].code}"

    def step(self, count: int = 1) -> None:
        """Do the next step, or so many of them."""
        for snippet in sections()[self.title][self.done : self.done + count]:
            for command, expected in commands_of(snippet.code):
                self._do(command, expected)
        self.done += count

    def _do(self, command: str, expected: str) -> None:
        if exported := EXPORT.fullmatch(command):
            name, (value,) = exported[1], shlex.split(exported[2])
            known = Template(value).substitute(self.live.environment) if value.startswith("$") else self.values[name]
            self.live.environment[name] = known
        elif command.endswith(" &"):
            self._start(command.removesuffix(" &"))
        elif _IS_OURS.match(command) and " | " not in command:
            self._ask(command, expected)
        elif _LOOKS_ELSEWHERE.search(command):
            self._look(command, expected, lambda: self._run(command), {status_of(command) or 0})
        else:
            self._check(command, expected, *self._run(command))

    def _start(self, command: str) -> Process:
        differs, words = self._split(command)
        return self.live.start([BIN / words[0], *words[1:]], cwd=self.live.folder, **differs)

    def _ask(self, command: str, expected: str) -> None:
        differs, words = self._split(command)
        told = status_of(command)
        if words[1] not in _LOOKS and "--preview" not in words:
            self._check(command, expected, *self._rqsched(words, differs))
            return
        may_be_wrong = words[1] in _SAY_IT_BY_STATUS and told is None
        codes = {0, 1} if may_be_wrong else {told or 0}
        self._look(command, expected, lambda: self._rqsched(words, differs), codes)

    def _look(self, command: str, expected: str, ask: Callable[[], tuple[int, str]], codes: AbstractSet[int]) -> None:
        seen: list[str] = []

        def look() -> bool:
            code, said = ask()
            seen[:] = [f"{said}\n(exit code {code})"]
            return code in codes and _is_answer(expected, said)

        wait_until(look, timeout=SOON, interval=0.1, what=lambda: f"$ {command}\nsays:\n{expected}\nseen:\n{seen[0]}")

    def _rqsched(self, words: list[str], differs: dict[str, str]) -> tuple[int, str]:
        """Run a command of ours to its end, from a warm start where the other tests have one."""
        log, environment = self.live.folder / "command.log", self._environment() | differs
        log.unlink(missing_ok=True)
        process = start([BIN / words[0], *words[1:]], log_path=log, env=environment, cwd=self.live.folder)
        try:
            return process.wait(timeout=SOON), process.log()
        except subprocess.TimeoutExpired:
            kill_all(process_tree(process.pid))
            raise

    def _run(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.live.folder,
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _check(self, command: str, expected: str, code: int, said: str) -> None:
        if code != (status_of(command) or 0):
            raise SnippetError(f"$ {command}\nended with {code}:\n{said}")
        if expected and not _is_answer(expected, said):
            raise SnippetError(f"$ {command}\nprinted:\n{said}\nthe page says:\n{expected}")

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(REPOSITORY), **self.live.environment}

    def _split(self, command: str) -> tuple[dict[str, str], list[str]]:
        """Split a command into the variables that are set for it alone, and its words."""
        words = [Template(one).safe_substitute(self.live.environment) for one in shlex.split(command, comments=True)]
        differs = dict(_assignments(words))
        return differs, words[len(differs) :]


def _is_answer(expected: str, said: str) -> bool:
    """Whether a command answered as the page says; before that it may have logged a warning."""
    return is_said(expected, said) or is_said(f"...\n{expected}", said)


def _assignments(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, is_one, value = word.partition("=")
        if not is_one or not name.isidentifier():
            return
        yield name, value


def plain(url: str) -> str:
    """A URL as libpq's own tools read it."""
    return url.replace("+psycopg", "")


def tools(folder: Path, *others: Path) -> str:
    """A PATH with our commands, `redis-cli`, which no package brings, and the other commands of the page."""
    folder.mkdir(exist_ok=True)
    command = folder / "redis-cli"
    command.write_text(f"#!{BIN / 'python'}\n{_REDIS_CLI}")
    command.chmod(0o755)
    return os.pathsep.join(map(str, [folder, BIN, *others, os.environ["PATH"]]))


_REDIS_CLI = """
import sys
from redis import Redis

_, option, url, *words = sys.argv
assert option == "-u"
redis = Redis.from_url(url, decode_responses=True)
redis.response_callbacks.clear()
print(redis.execute_command(*words))
"""
