"""Liveness: processes that answer a ping, and processes that count as dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rqsched.run.vital_signs import Answer, LivenessSocket, ask_all, leave_held_to_parent, run_folder, too_long
from tests.support.processes import wait_until

KILLED = """
import os, signal, sys
from pathlib import Path
from rqsched.run.vital_signs import LivenessSocket
LivenessSocket(Path(sys.argv[1]), "worker")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def turning(folder: Path) -> Iterator[LivenessSocket]:
    """A supervisor whose loop turns."""
    ended = threading.Event()
    with closing(LivenessSocket(folder, "worker")) as listening:

        def turn() -> None:
            while not ended.wait(0.01):
                listening.answer(lambda: {"children": [1, 2]})

        thread = threading.Thread(target=turn)
        thread.start()
        yield listening
        ended.set()
        thread.join()


def leave_one_that_was_killed(folder: Path) -> Path:
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)])
    killed.wait(60)
    return folder / f"worker-{killed.pid}.sock"


def test_whoever_turns_answers_what_it_is_asked(folder: Path, turning: LivenessSocket) -> None:
    expected = Answer(f"worker-{os.getpid()}", {"children": [1, 2]})

    assert [list(ask_all(folder, 60)) for _ in range(3)] == [[expected]] * 3


def test_whoever_stands_still_does_not_answer_in_time(folder: Path) -> None:
    with closing(LivenessSocket(folder, "worker")):
        assert list(ask_all(folder, 0.1)) == [Answer(f"worker-{os.getpid()}", None)]


def test_one_that_was_killed_is_left_out_and_tidied_by_the_next(folder: Path, turning: LivenessSocket) -> None:
    left = leave_one_that_was_killed(folder)
    assert left.exists()
    assert [answer.name for answer in ask_all(folder, 60)] == [turning.path.stem]

    with closing(LivenessSocket(folder, "dispatcher")):
        assert not left.exists()
        assert turning.path.exists()


def test_one_that_ended_in_order_leaves_nothing(folder: Path) -> None:
    LivenessSocket(folder, "worker").close()
    assert list(folder.iterdir()) == []


def test_a_fork_does_not_answer_in_its_parents_name(folder: Path) -> None:
    """A fork that answered would keep the parent's socket open beyond the parent's death."""
    LivenessSocket(folder, "worker")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    leave_held_to_parent()  # as the death of this process would

    wait_until(lambda: list(ask_all(folder, 60)) == [], what="nobody")

    os.close(writing)
    os.waitpid(child, 0)


def test_the_folder_can_be_opened_by_its_user_alone(folder: Path) -> None:
    LivenessSocket(folder, "worker").close()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_where_others_may_write_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="set RQSCHED_RUN_DIR"):
        LivenessSocket(folder, "worker")
    with pytest.raises(PermissionError, match="set RQSCHED_RUN_DIR"):
        list(ask_all(folder, 1))


def test_a_link_to_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="set RQSCHED_RUN_DIR"):
        LivenessSocket(folder, "worker")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, -1)
    with pytest.raises(PermissionError, match="set RQSCHED_RUN_DIR"):
        list(ask_all(folder, 1))


def test_the_folder_is_one_of_this_user_among_the_temporary_files() -> None:
    assert run_folder().name == f"rqsched-{os.getuid()}"
    assert run_folder(Path("/run/rqsched")) == Path("/run/rqsched")


def test_a_folder_whose_name_is_too_long_for_a_socket_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * (120 - len(str(tmp_path))))
    with pytest.raises(OSError, match=r"the path of a socket in .*aaa may be longer .*; set RQSCHED_RUN_DIR"):
        LivenessSocket(folder, "worker")
    assert list(ask_all(folder, 1)) == []
    assert too_long(Path("/run/rqsched")) is None
