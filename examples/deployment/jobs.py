"""The code of an application: `RQSCHED_IMPORTS=jobs` makes its workflows known to every process."""

from rqsched import workflow


@workflow("greet")
def greet(name: str) -> str:
    """Return a greeting."""
    return f"Good morning, {name}"
