"""The note of a runner for its successor is read completely or not at all, also if its writer died halfway."""

from __future__ import annotations

import os

from rqsched.run.runner_slot import Cause, Note, RunnerJob, Slot
from tests.support.children import in_children

JOB = RunnerJob("run-1", 7, "default", is_ours=True, kill_at=1.5, execution_id="e", token="t")


def test_what_a_child_writes_its_parent_reads_after_its_death() -> None:
    slot = Slot("here")

    def write() -> bool:
        slot.job = JOB
        return True

    assert in_children(1, write) == [True]

    assert slot.job == JOB


def test_nothing_is_there_before_anything_was_written_and_after_it_was_taken_back() -> None:
    slot = Slot("here")
    before = slot.job
    slot.job = JOB
    slot.job = None
    assert (before, slot.job, slot.cause, slot.request) == (None, None, None, None)


def test_each_note_of_a_slot_is_apart_from_the_others() -> None:
    slot = Slot("here")
    slot.job, slot.cause, slot.request = JOB, Cause(7, "why"), {"number": 1, "command": "shutdown"}
    slot.job = None
    assert slot.cause == Cause(7, "why")
    assert slot.request == {"number": 1, "command": "shutdown"}


def test_a_note_whose_writer_died_halfway_says_nothing_and_the_next_one_is_whole() -> None:
    note = Note()
    note.write({"is": "whole"})
    note._memory[0] = 1 | note._memory[0]  # as a writer leaves it between its first and its last step

    assert note.read() is None
    note.write({"is": "next"})
    assert note.read() == {"is": "next"}


def test_a_note_that_is_too_long_leaves_nothing() -> None:
    note = Note()
    note.write({"is": "there"})
    note.write({"is": "x" * 10_000})
    assert note.read() is None


def test_a_reader_never_sees_half_of_a_note() -> None:
    note, size = Note(), 900
    writer = os.fork()
    if writer == 0:
        for number in range(20_000):
            note.write({"text": str(number % 10) * size})
        os._exit(0)
    seen = set()
    while os.waitpid(writer, os.WNOHANG) == (0, 0):
        found = note.read()
        if found is not None:
            seen.add((len(found["text"]), len(set(found["text"]))))
    assert seen <= {(size, 1)}
