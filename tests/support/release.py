"""Check what a release publishes: `make release`, after it has built `dist/`. CONTRIBUTING.md, "A release".

It installs and tries the wheel in a new venv on each Python that is installed here, and writes the notes of the release
to `build/notes.txt`. It exits with 1 if something must still be done, and says what.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.support.processes import REPOSITORY

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that rqsched supports."""
FROM_CHECKOUT = re.compile(r"pip install '\.\[|No release is on a package index")
FROM_INDEX = "pip install 'rqsched[embedded,dashboard]'"


def main() -> int:
    """Check the files in `dist/`, write the notes, and print what remains to be done."""
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    changelog, quickstart = (REPOSITORY / name for name in ("CHANGELOG.md", "docs/quickstart.md"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *sorted(REPOSITORY.glob("dist/*"))], check=True)
    (wheel,) = REPOSITORY.glob("dist/*.whl")
    for python in installed_pythons():
        try_wheel(wheel, python)
    notes = notes_of(changelog.read_text(), version)
    (REPOSITORY / "build").mkdir(exist_ok=True)
    (REPOSITORY / "build" / "notes.txt").write_text(notes or notes_of(changelog.read_text(), "Unreleased"))
    print("the notes of the release are in build/notes.txt")
    remaining = still_to_do(version, changelog.read_text(), quickstart.read_text())
    for one in remaining:
        print(f"to do: {one}")
    return bool(remaining)


def installed_pythons() -> list[str]:
    """Return the interpreters of PYTHONS that start here. A shim of pyenv may name a version that is not installed."""
    found = filter(None, (shutil.which(f"python{one}") for one in PYTHONS))
    return [
        one for one in found if subprocess.run([one, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0
    ]


def try_wheel(wheel: Path, python: str) -> None:
    """Install the wheel with every extra in a new venv, and use it there without the repository."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = f"{folder}/bin/python"
        subprocess.run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}[all]"], check=True)
        subprocess.run([own, "-I", REPOSITORY / "tests" / "support" / "installed.py"], cwd=folder, check=True)


def notes_of(changelog: str, version: str) -> str:
    """Return the text of a version's section in the changelog; an empty text if it has none."""
    section = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.DOTALL | re.MULTILINE)
    return section[1].strip() + "\n" if section else ""


def still_to_do(version: str, changelog: str, quickstart: str) -> list[str]:
    """Return what keeps this version from being published."""
    todo = []
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        todo.append(f"CHANGELOG.md: rename [Unreleased] to [{version}] - DATE, with the date as YYYY-MM-DD")
    if FROM_CHECKOUT.search(quickstart) or FROM_INDEX not in quickstart:
        todo.append(f"docs/quickstart.md, Install: write {FROM_INDEX} instead of the checkout")
    return todo


if __name__ == "__main__":
    sys.exit(main())
