"""The one line by which an error is shown: the exception's own, whatever stands before and after it."""

from __future__ import annotations

import pytest

from rqsched.errors import error_line
from rqsched.kernel.chain.error_text import describe_error

EXTERNAL = """Traceback (most recent call last):
  File "worker.py", line 3, in run
    raise KeyError("a")
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 5, in run
    raise TimeoutError(
        "smtp")
sqlalchemy.exc.TimeoutError: smtp.example.com
(Background on this error at: https://sqlalche.me/e/20/3o7r)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, ""),
        (" \n", ""),
        ("timeout: 3 s", "timeout: 3 s"),
        ("ValueError: one\ntwo\n\nTraceback (most recent call last):\n  File\nValueError: one\ntwo", "ValueError: one"),
        (EXTERNAL, "sqlalchemy.exc.TimeoutError: smtp.example.com"),
        ("Traceback (most recent call last):", ""),
    ],
    ids=["none", "blank", "one line", "ours", "a traceback of an external worker", "nothing but its head"],
)
def test_the_line_of_an_error_is_the_exceptions_own(text: str | None, line: str) -> None:
    assert error_line(text) == line


def test_the_line_of_an_error_with_advice_behind_it_is_the_error() -> None:
    def fail() -> None:
        raise LookupError(
            "no such table: carts\n[SQL: SELECT 1]\n(Background on this error at: https://sqlalche.me/e/20)"
        )

    with pytest.raises(LookupError) as caught:
        fail()

    assert error_line(describe_error(caught.value)) == "LookupError: no such table: carts"
