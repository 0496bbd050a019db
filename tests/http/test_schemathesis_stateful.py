"""Generated sequences of requests: each uses the answer of the one before, with tokens and without.

The tests check every answer, that clients without a token are refused if there are tokens, that created objects
exist, and that requests that violate the document are refused. A request that fits the document may be refused: no
schema says which cron expression never fires or which cursor belongs to which list.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    ensure_resource_availability,
    ignored_auth,
)

from rqsched.http import Limits
from tests.http.test_schemathesis import CHECKS
from tests.support.population import HEADERS, minimal_body, populate
from tests.support.sizes import sized
from tests.support.web import MakeWeb, Web, one_token

SECRET = "secret-of-the-generated-requests"
TOKENS = one_token(SECRET, namespaces="*")
SEQUENCES, STEPS = 10, sized(12, 25)
SEEDS = sized(1, 10)
"""How often so many sequences are generated."""
TRIALS = SEEDS + 20
"""How often at most, where those had nothing to use: Hypothesis draws on all modules that this process has imported, so
which ones they are depends on the tests before."""
VARIETY = 12
"""How many operations the sequences ask at least."""


@pytest.fixture(params=["with tokens", "without tokens"])
def application(request: pytest.FixtureRequest, make_web: MakeWeb) -> Web:
    """An application with tokens, or one without."""
    limits = {"limits": Limits(rate=0, failures=100_000, stream_seconds=0.05)}
    if request.param == "without tokens":
        return make_web(app=limits)
    return make_web(app=limits, tokens=TOKENS).acting_as(SECRET)


def test_sequences_of_generated_requests_are_answered_as_documented(application: Web) -> None:
    sent, succeeded, faults = Counter[str](), Counter[str](), dict[str, str]()
    document = schemathesis.openapi.from_asgi("/openapi.json", application.app)
    document.config.generation.update(modes=list(GenerationMode))
    headers = {**HEADERS, **application.headers}
    checks = [*CHECKS, ensure_resource_availability, *([ignored_auth] if application.headers else [])]
    known, numbers = populate(application), count()

    class Machine(document.as_state_machine()):  # type: ignore[misc]
        """Sends the requests of a sequence, and keeps an example of each fault."""

        def before_call(self, case: Any) -> None:
            minimal = minimal_body(case.operation.label, known)
            if minimal and next(numbers) % 2 == 0:  # else nearly every create is refused, and nothing follows from it
                case.body, case.query = dict(minimal), {}

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            del case
            return {"headers": headers}

        def validate_response(self, response: Any, case: Any, **options: Any) -> None:
            del options
            sent[case.operation.label] += 1
            if "{" in case.operation.path and response.status_code < 300:
                succeeded[case.operation.label] += 1
            for check in checks:
                try:
                    case.validate_response(response, checks=[check], headers=headers)
                except (AssertionError, BaseExceptionGroup) as error:
                    faults[f"{case.operation.label}: {check.__name__}"] = str(error)

    for number in range(TRIALS):
        # Objects of earlier sequences stay stored, so the same choices may meet other answers.
        with suppress(FlakyStrategyDefinition):
            seed(number)(Machine).run(settings=settings(
                max_examples=SEQUENCES, stateful_step_count=STEPS, phases=[Phase.generate], deadline=None,
                database=None, suppress_health_check=list(HealthCheck),
            ))  # fmt: skip
        assert faults == {}
        if number + 1 >= SEEDS and succeeded and len(sent) >= VARIETY:
            return
    pytest.fail(f"what one answered was never used by the next, or {len(sent)} operations were few")
