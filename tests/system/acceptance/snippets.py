"""Run the snippets of one page of documentation, in order, in the working directory: `python -m ... PAGE`.

- `python` blocks share one namespace; `pycon` blocks are doctests in it.
- `console` blocks: each line after `$ ` is a command of the shell, what follows is what it prints (`...` is anything;
  nothing written means nothing is compared). It must succeed; `# exits with 2` at its end says otherwise. A command
  that ends in `&` runs until the page ends; `export NAME=VALUE` holds until then.
- `<!-- snippet: file=NAME -->` before a block writes it to a file instead; `<!-- snippet: skip because WHY -->` leaves
  it out. Blocks in other languages, and indented ones, are not run.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

_ORDER = r"^(?:<!-- snippet: (?P<order>.+?) -->\n+)?"
_BLOCK = r"^```(?P<language>\w+)?[^\n]*\n(?P<code>.*?)^```$"
_FENCE = re.compile(_ORDER + _BLOCK, re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"export (\w+)=(\S+)")
_STATUS = re.compile(r"# exits with (\d+)\s*$")
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_LONGEST = 60


class SnippetError(Exception):
    """A snippet does not do as the page says."""


@dataclass(frozen=True)
class Snippet:
    """One fenced block."""

    language: str
    code: str
    line: int
    """The line of its first line, from 1."""
    order: str = ""
    """The instruction in the comment before the snippet."""


def snippets_of(text: str) -> Iterator[Snippet]:
    """The blocks that are run or written, in order."""
    for match in _FENCE.finditer(text):
        order = match["order"] or ""
        if order.startswith("skip because "):
            continue
        if order and not order.startswith("file="):
            raise SnippetError(f"unknown order {order!r}")
        line = text.count("\n", 0, match.start("code")) + 1
        yield Snippet(match["language"] or "", match["code"], line, order)


class Page:
    """The snippets of one page on their way through one namespace and one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, object] = {"__name__": "page"}
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Run every snippet; returns how many there were. Run a snippet; an error of it gets its place as a note."""
        verbs: dict[str, Callable[[Snippet], None]] = {
            "python": self._python,
            "pycon": self._doctest,
            "console": self._console,
        }
        count = 0
        try:
            for snippet in snippets_of(self._path.read_text()):
                verb = self._write if snippet.order else verbs.get(snippet.language)
                if verb is not None:
                    self._run_one(verb, snippet)
                    count += 1
        finally:
            self._end_background()
        return count

    def _run_one(self, verb: Callable[[Snippet], None], snippet: Snippet) -> None:
        try:
            verb(snippet)
        except Exception as error:
            error.add_note(f"in the snippet at {self._path.name}:{snippet.line}")
            raise

    def _write(self, snippet: Snippet) -> None:
        path = Path(snippet.order.removeprefix("file="))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(snippet.code)

    def _python(self, snippet: Snippet) -> None:
        padded = "\n" * (snippet.line - 1) + snippet.code
        exec(compile(padded, str(self._path), "exec"), self._names)

    def _doctest(self, snippet: Snippet) -> None:
        test = doctest.DocTestParser().get_doctest(snippet.code, self._names, "page", str(self._path), snippet.line)
        said: list[str] = []
        doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=said.append, clear_globs=False)
        self._names |= test.globs
        if said:
            raise SnippetError("".join(said))

    def _console(self, snippet: Snippet) -> None:
        patience = 0.0
        for command, expected in commands_of(snippet.code):
            if exported := EXPORT.fullmatch(command):
                os.environ[exported[1]] = exported[2]
            elif command.endswith(" &"):
                self._background.append(subprocess.Popen(["bash", "-c", command[:-2]], start_new_session=True))
            else:
                _check_patiently(command, expected, patience)
                # On a busy machine, what the page sleeps for may take longer.
                patience = _LONGEST if command.startswith("sleep ") else 0.0

    def _end_background(self) -> None:
        for process in self._background:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_LONGEST)


def commands_of(code: str) -> Iterator[tuple[str, str]]:
    """Yield the command after each `$ `, with its continuation lines, and its output."""
    for block in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        last = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]).strip()


def status_of(command: str) -> int | None:
    """The exit code that a command says of itself; None where it says nothing."""
    found = _STATUS.search(command)
    return int(found[1]) if found else None


def is_said(expected: str, said: str) -> bool:
    """Whether a command printed the text of the page; `...` is anything, and blanks are alike."""
    return doctest.OutputChecker().check_output(expected + "\n", said.strip() + "\n", _FLAGS)


def _check_patiently(command: str, expected: str, patience: float) -> None:
    """Check a command, and again each second while it does not say what the page says, for so many seconds."""
    waiting = Retrying(
        retry=retry_if_exception_type(SnippetError), stop=stop_after_delay(patience), wait=wait_fixed(1), reraise=True
    )
    waiting(_check_command, command, expected)


def _check_command(command: str, expected: str) -> None:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=_LONGEST, check=False)
    said = done.stdout + done.stderr
    if done.returncode != (status_of(command) or 0):
        raise SnippetError(f"$ {command}\nended with {done.returncode}:\n{said}")
    if expected and not is_said(expected, said):
        raise SnippetError(f"$ {command}\nprinted:\n{said}\nthe page says:\n{expected}")


if __name__ == "__main__":
    print(Page(Path(sys.argv[1])).run(), "snippets")
