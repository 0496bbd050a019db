"""The table of mutations fits the code as it is, and one of them is made here; `make mutation` makes them all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.system.mutation.bench import ROOT, bench
from tests.system.mutation.edits import Edit, Mutation, as_markdown
from tests.system.mutation.table import MUTATIONS

PURE = Mutation(
    "a fire does not compare n",
    (Edit("rqsched/kernel/decide/fire_decision.py", " or schedule.n != n", ""),),
    ("tests/kernel/chain/test_fire.py::test_a_link_of_another_position_writes_nothing[older]",),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code_and_names_tests_that_are_there(mutation: Mutation, tmp_path: Path) -> None:
    for edit in mutation.edits:
        copy = tmp_path / edit.path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copyfile(ROOT / edit.path, copy)
        edit.apply(tmp_path)
        if copy.suffix == ".py":
            compile(copy.read_text(), edit.path, "exec")
    for name in mutation.noticed_by:
        path, function = name.split("[")[0].split("::")
        assert f"def {function}(" in (ROOT / path).read_text()


def test_the_documentation_holds_the_table() -> None:
    page = (ROOT / "docs/proofs/guarantees.md").read_text()
    assert as_markdown(MUTATIONS) in page, "python -m tests.system.mutation --list"


def test_names_are_unique() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_an_edit_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="0 times"):
        Edit("a.py", "y = 1", "y = 2").apply(tmp_path)


@pytest.mark.broad
def test_a_mutated_copy_fails_a_named_test_and_the_checkout_is_not_touched() -> None:
    path = ROOT / PURE.edits[0].path
    before = path.read_bytes()
    with bench() as copy:
        with copy.mutated(PURE):
            result = copy.test(PURE.noticed_by)
        assert (copy.folder / PURE.edits[0].path).read_bytes() == before, "and it is restored"

    assert result.failed == set(PURE.noticed_by), result.output
    assert path.read_bytes() == before
