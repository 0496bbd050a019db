"""How heavy the package is: files, lines, functions and their references. `python -m tests.support.weight [FOLDER]`.

A line of code holds a token that is neither a comment nor part of a docstring. A lambda is a function. A reference of
a function is its name outside of its definition: as a name, an attribute, an imported name or a word of a text such as
a `getattr`. Functions of one name share their references. Dunders and functions that a decorator registers are called
by others, so they do not count as functions with one reference.
`private_with_one_reference` are those whose name begins with an underscore: nobody outside the package may call them.
"""

from __future__ import annotations

import ast
import io
import json
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PLAIN = {
    "property",
    "cached_property",
    "cache",
    "lru_cache",
    "staticmethod",
    "classmethod",
    "contextmanager",
    "override",
}
"""Decorators that register nothing."""
_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
    tokenize.ENCODING,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def weigh(package: Path) -> dict[str, float]:
    """Measure every module below a folder."""
    sources = [path.read_text() for path in sorted(package.rglob("*.py"))]
    trees = [ast.parse(source) for source in sources]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]
    lambdas = sum(isinstance(node, ast.Lambda) for tree in trees for node in ast.walk(tree))
    references = Counter(name for tree in trees for name in _names(tree))
    once = [one for one in functions if references[one.name] == 1 and not _is_called_by_others(one)]
    private = [one for one in once if one.name.startswith("_")]
    total = len(functions) + lambdas
    return {
        "files": len(sources),
        "lines": sum(len(source.splitlines()) for source in sources),
        "code_lines": sum(_code_lines(source, tree) for source, tree in zip(sources, trees, strict=True)),
        "functions": total,
        "lambdas": lambdas,
        "median_function_lines": statistics.median(_length(one) for one in functions),
        "with_one_reference": len(once),
        "with_one_reference_percent": round(100 * len(once) / total, 1),
        "private_with_one_reference": len(private),
        "private_with_one_reference_percent": round(100 * len(private) / total, 1),
        "files_under_100_lines": sum(len(source.splitlines()) < 100 for source in sources),
    }


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(text)) if text.isidentifier():
                yield text


def _is_called_by_others(function: Function) -> bool:
    if function.name.startswith("__"):
        return True
    return any(_name_of(decorator) not in PLAIN for decorator in function.decorator_list)


def _name_of(decorator: ast.expr) -> str:
    inner = decorator.func if isinstance(decorator, ast.Call) else decorator
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")


def _length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def _code_lines(source: str, tree: ast.Module) -> int:
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


if __name__ == "__main__":
    print(json.dumps(weigh(Path(sys.argv[1] if len(sys.argv) > 1 else "rqsched")), indent=2))
