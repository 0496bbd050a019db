"""Whether code stands at a dotted path is found out without running any of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rqsched.importers.code_here import why_missing

BOMB = "raise RuntimeError('this is not to be imported')\n"


@pytest.fixture(autouse=True)
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application whose modules raise when they are imported."""
    package = tmp_path / "appl"
    (package / "inner").mkdir(parents=True)
    (tmp_path / "bare" / "inner").mkdir(parents=True)
    texts = {
        "appl/__init__.py": BOMB,
        "appl/tasks.py": BOMB + "def send(): ...\nPATHS = 1\n",
        "appl/all.py": BOMB + "from appl.tasks import *\n",
        "appl/lazy.py": BOMB + "def __getattr__(name): ...\n",
        "appl/inner/__init__.py": BOMB,
        "appl/inner/deep.py": BOMB + "async def send(): ...\n",
        "bare/inner/tasks.py": BOMB + "def send(): ...\n",
        "appl_file.py": BOMB,
        "send.py": BOMB,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "appl.tasks.send",
        "appl.tasks:send",
        "appl.inner.deep.send",
        "appl.all.whatever",
        "appl.lazy.whatever",
        "bare.inner.tasks.send",
        "os.path.join",
        "math.floor",
        "json.dumps",
    ],
)
def test_code_that_is_here_or_may_be_is_not_missing(path: str) -> None:
    assert why_missing(path) is None
    assert not {"appl", "bare", "appl.tasks"} & set(sys.modules)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("appl.tasks.sends", "appl.tasks has no sends"),
        ("appl.tasks.PATH", "appl.tasks has no PATH"),
        ("appl.gone.send", "there is no module appl.gone"),
        ("gone.send", "there is no module gone"),
        ("appl_file.send.send", "there is no module appl_file.send"),
        ("math.send", "math has no send"),
        ("json.send", "json has no send"),
    ],
)
def test_code_that_is_not_here_is_missing(path: str, why: str) -> None:
    assert why_missing(path) == why
    assert not {"appl", "appl_file"} & set(sys.modules)


def test_a_file_that_cannot_be_read_may_have_the_code(tmp_path: Path) -> None:
    (tmp_path / "appl" / "odd.py").write_bytes(b"# coding: nowhere\n")
    assert why_missing("appl.odd.send") is None
