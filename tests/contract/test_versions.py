"""The suite runs on the lower bounds of pyproject.toml: `make test-versions` installs exactly these."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.processes import REPOSITORY


def requirements() -> Iterator[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for names in project["optional-dependencies"].values():
        texts += names
    for text in texts:
        wanted = Requirement(text)
        if wanted.name != "rqsched":
            yield wanted
            yield from (Requirement(f"{wanted.name}-{part}{wanted.specifier}") for part in wanted.extras)


def lower_bound(wanted: Requirement) -> Version:
    (bound,) = [part.version for part in wanted.specifier if part.operator == ">="]
    return Version(bound)


def test_the_oldest_versions_that_are_tried_are_the_oldest_that_are_allowed() -> None:
    lines = (REPOSITORY / "tests" / "support" / "oldest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if not line.startswith("#"))
    allowed = {wanted.name: lower_bound(wanted) for wanted in requirements()}
    assert {name: Version(version) for name, version in tried.items()} == allowed
