"""The parts of a release: packages that install into a clean venv and work, sound workflows, a lock that fits."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import release
from tests.support.processes import BIN, REPOSITORY

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
LOCK = (REPOSITORY / "tests" / "support" / "locked.txt").read_text()
GITHUB = REPOSITORY / ".github"


def run(*words: object, folder: Path = REPOSITORY) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pattern", ["*.whl", pytest.param("*.tar.gz", marks=pytest.mark.nightly)])
def test_package_installs_into_a_clean_venv_and_works(pattern: str, packages: Path, tmp_path: Path) -> None:
    (package,) = packages.glob(pattern)
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{package}[all]")

    told = run(python, "-I", REPOSITORY / "tests" / "support" / "installed.py", folder=tmp_path)

    assert f"rqsched {PYPROJECT['project']['version']} works" in told


def test_wheel_holds_the_package_alone_and_the_sdist_its_tests_and_docs(packages: Path) -> None:
    (wheel,), (sdist,) = packages.glob("*.whl"), packages.glob("*.tar.gz")
    in_wheel = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        in_sdist = {name.split("/")[1] for name in archive.getnames()}
    package = [path for path in (REPOSITORY / "rqsched").rglob("*") if path.is_file() and path.suffix != ".pyc"]

    folders = {name.partition("/")[0] for name in in_wheel}
    assert folders == {"rqsched", f"rqsched-{PYPROJECT['project']['version']}.dist-info"}
    assert {str(path.relative_to(REPOSITORY)) for path in package} - {*in_wheel} == set(), "also templates of features"
    assert {"rqsched", "tests", "docs", "examples", "pyproject.toml", "LICENSE", "README.md"} <= in_sdist


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("dependabot", "dependabot.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_files_for_github_have_the_form_that_it_reads(schema: str, pattern: str) -> None:
    """Its expressions and the shell are checked by actionlint, which PyPI has no whole package of: `make workflows`."""
    files = sorted(GITHUB.glob(pattern))
    assert files
    run(BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_workflows_cannot_be_misused() -> None:
    """Offline: checks of the actions' tags and of known weaknesses need the network."""
    run(BIN / "zizmor", "--offline", "--no-progress", "--persona=pedantic", GITHUB)


def requirements() -> Iterator[Requirement]:
    """Yield the requirements of pyproject.toml: of the package, its extras and its groups."""
    project = PYPROJECT["project"]
    asked: list[Any] = [*project["dependencies"]]
    for names in (*project["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()):
        asked += names
    for text in asked:
        if isinstance(text, str) and not text.startswith("rqsched["):
            yield Requirement(text)


def test_lock_has_a_version_that_fits_for_everything_that_is_asked_for() -> None:
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", LOCK, re.MULTILINE):
        locked.setdefault(canonicalize_name(name), []).append(version)

    missing = [
        str(wanted)
        for wanted in requirements()
        if not any(wanted.specifier.contains(version) for version in locked.get(canonicalize_name(wanted.name), []))
    ]
    assert missing == [], "make lock"


def test_lock_names_files_by_their_hashes_and_no_host() -> None:
    entries = re.split(r"\n(?=\S)", LOCK)
    assert [entry for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []
    assert [word for word in ("://", "--index-url", "--find-links") if word in LOCK] == []


def test_every_extra_serves_those_who_install_it() -> None:
    assert set(PYPROJECT["project"]["optional-dependencies"]) == {
        "cli", "http", "dashboard", "postgres", "machines", "wsgi", "django", "embedded", "yaml", "otel",
        "calendars", "all",
    }  # fmt: skip


def test_the_documentation_has_one_install_line() -> None:
    pages = {page: page.read_text() for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]}
    lines = [
        (page.name, line)
        for page, text in pages.items()
        for line in text.splitlines()
        if re.search(r"""pip install ['"]?(\.\[|rqsched)""", line)
    ]
    assert [page for page, _ in lines] == ["quickstart.md"]


CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A thing that is not released.

## [0.2.0] - 2027-01-31

### Fixed

- A fault.

## [0.1.0] - 2026-12-24

- The first.
"""


def test_notes_of_a_release_are_the_section_of_its_version() -> None:
    assert release.notes_of(CHANGELOG, "0.2.0") == "### Fixed\n\n- A fault.\n"
    assert release.notes_of(CHANGELOG, "0.1.0") == "- The first.\n"
    assert release.notes_of(CHANGELOG, "0.3.0") == ""


def test_a_release_needs_a_dated_section_of_the_changelog_and_the_install_line_of_an_index() -> None:
    assert release.still_to_do("0.2.0", CHANGELOG, release.FROM_INDEX) == []
    assert "rename [Unreleased] to [0.3.0]" in release.still_to_do("0.3.0", CHANGELOG, release.FROM_INDEX)[0]
    (todo,) = release.still_to_do("0.2.0", CHANGELOG, "pip install '.[embedded,dashboard]'")
    assert release.FROM_INDEX in todo


def test_this_version_is_not_ready_until_the_changelog_names_it() -> None:
    """The check reads the real files, so it notices a changed form of the changelog or of the install section."""
    changelog, quickstart = (REPOSITORY / "CHANGELOG.md").read_text(), (REPOSITORY / "docs/quickstart.md").read_text()
    version = PYPROJECT["project"]["version"]
    assert bool(release.notes_of(changelog, version)) == (not release.still_to_do(version, changelog, quickstart))
    assert release.notes_of(changelog, version) or release.notes_of(changelog, "Unreleased")
