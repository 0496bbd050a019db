"""Files and functions are short, as CONTRIBUTING.md asks."""

from __future__ import annotations

import ast
import statistics

from tests.contract.sources import modules

MOST_LINES = 500
MEDIAN_FUNCTION = 8


def test_no_file_of_the_package_is_longer_than_its_bound() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert {module: length for module, length in lengths.items() if length > MOST_LINES} == {}


def test_the_median_function_of_the_package_is_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) <= MEDIAN_FUNCTION
