"""The references in code and docs exist: pages, files, sections, and the functions of the architecture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.contract.sources import PACKAGE
from tests.support.processes import REPOSITORY

FOLDERS = ("rqsched", "tests", "benchmarks", "examples", "docs")
PAGE = re.compile(r"(?<![\w./*{}-])((?:[\w.-]+/)*[\w-]+\.md)\b")
FILE = re.compile(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:py|svg|json|toml))\b")
SECTION = re.compile(r"([\w./-]+\.md), \"([^\"]+)\"|([\w./-]+\.md)#([\w-]+)")
FUNCTION = re.compile(r"`([\w/]+\.py):([\w.]+)`")
NOT_OURS = {"page.md", "docs/adr/NNNN-title.md"}
"""A page that a test writes for itself, and the form of a name."""
GENERATED = {
    f"reference/{name}.md"
    for name in re.findall(r'"([\w-]+)": \w+\(\)', (REPOSITORY / "docs" / "reference.py").read_text())
}
"""The pages that building the site writes."""
RECORDS = REPOSITORY / "docs" / "adr"
"""Decisions are not rewritten: they may name files as they were."""


def texts() -> Iterator[tuple[Path, str]]:
    """Every Python file and every page, with its text."""
    files = [path for folder in FOLDERS for kind in ("*.py", "*.md") for path in (REPOSITORY / folder).rglob(kind)]
    for path in sorted([*files, *REPOSITORY.glob("*.md"), *REPOSITORY.glob("*.py")]):
        if path != Path(__file__):
            yield path, path.read_text()


def resolves(name: str, source: Path) -> bool:
    places = (source.parent, REPOSITORY, REPOSITORY / "docs")
    return name in NOT_OURS | GENERATED or any((place / name).exists() for place in places)


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+?)\s*$", page.read_text(), re.MULTILINE))


def test_every_page_that_is_named_exists() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path, text in texts()
        for name in PAGE.findall(text)
        if not resolves(name, path)
    ]
    assert missing == []


def test_every_file_of_ours_that_is_named_exists() -> None:
    missing = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path, text in texts()
        if not path.is_relative_to(RECORDS)
        for name in FILE.findall(text)
        if not (REPOSITORY / name).exists()
    ]
    assert missing == []


def test_sections_are_cited_by_their_heading() -> None:
    numbered = [str(path.relative_to(REPOSITORY)) for path, text in texts() if "\u00a7" in text]
    assert numbered == [], "name the page and its heading"

    missing = [
        f"{path.relative_to(REPOSITORY)}: {page}, {heading}"
        for path, text in texts()
        for page, heading, _, _ in SECTION.findall(text)
        if page and heading not in headings(REPOSITORY / page)
    ]
    assert missing == []


def functions(path: Path) -> set[str]:
    """The functions and methods of a file, by qualified name."""
    body = ast.parse(path.read_text()).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    inner = {f"{c.name}.{m.name}" for c in body if isinstance(c, ast.ClassDef) for m in c.body if isinstance(m, kinds)}
    return {node.name for node in body if isinstance(node, (*kinds, ast.ClassDef))} | inner


def test_every_function_that_the_architecture_names_exists() -> None:
    named = FUNCTION.findall((REPOSITORY / "docs" / "architecture.md").read_text())
    assert len(named) > 20

    missing = [
        f"{name}:{function}"
        for name, function in named
        if not (PACKAGE / name).exists() or function not in functions(PACKAGE / name)
    ]
    assert missing == []
