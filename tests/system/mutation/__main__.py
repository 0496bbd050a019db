"""Break the code on purpose: `python -m tests.system.mutation`, or only some of it, by name.

Each mutation is made in a copy of the tree; it ends with 0 when every test named for it fails, and passes without it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.system.mutation.bench import Bench, bench
from tests.system.mutation.edits import Mutation, as_markdown
from tests.system.mutation.table import MUTATIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", help="the mutations to make (all)")
    parser.add_argument("--list", action="store_true", help="print the table in Markdown and do nothing")
    parser.add_argument("--without-baseline", action="store_true", help="do not run the tests unmutated first")
    arguments = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if not arguments.names or mutation.name in arguments.names]
    unknown = set(arguments.names) - {mutation.name for mutation in chosen}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if arguments.list:
        print(as_markdown(chosen))
        return 0
    with bench() as copy:
        return _prove(copy, chosen, has_baseline=not arguments.without_baseline)


def _prove(copy: Bench, chosen: Sequence[Mutation], *, has_baseline: bool) -> int:
    if has_baseline and not _passes_unmutated(copy, chosen):
        return 1
    survivors = [mutation.name for mutation in chosen if not _is_noticed(copy, mutation)]
    print(f"{len(chosen)} mutations, survived: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


def _passes_unmutated(copy: Bench, chosen: Sequence[Mutation]) -> bool:
    names = list(dict.fromkeys(name for mutation in chosen for name in mutation.noticed_by))
    began = time.monotonic()
    result = copy.test(names)
    broken = set(names) - result.passed
    print(f"unmutated: {len(result.passed)} tests pass, {time.monotonic() - began:.1f} s", flush=True)
    if broken:
        print("\n".join([*(f"  does not pass unmutated: {name}" for name in sorted(broken)), result.output]))
    return not broken


def _is_noticed(copy: Bench, mutation: Mutation) -> bool:
    began = time.monotonic()
    with copy.mutated(mutation):
        result = copy.test(mutation.noticed_by)
    blind = [name for name in mutation.noticed_by if name not in result.failed]
    verdict = "noticed" if not blind else "SURVIVED"
    noticed = len(mutation.noticed_by) - len(blind)
    print(
        f"{verdict:8} {mutation.name}: {noticed} of {len(mutation.noticed_by)} tests, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    if blind:
        print("\n".join([*(f"  did not fail: {name}" for name in blind), result.output]), flush=True)
    return not blind


if __name__ == "__main__":
    sys.exit(main())
