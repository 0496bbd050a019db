"""Secrets stay where they are: no answer, log or audit event shows a token, nor how the backends are reached."""

from __future__ import annotations

import hashlib
import json
import logging

import pytest

from rqsched.config import Settings
from rqsched.http.auth import Tokens
from rqsched.http.limits import Limits
from rqsched.kernel.store.tables import audit_events
from tests.support.population import documented_operations, populate, request
from tests.support.servers import free_port
from tests.support.sql import NO_PATIENCE
from tests.support.web import SCHEDULES, MakeWeb, Web, at

TOKEN, WRONG, PASSWORD = "the-right-secret-of-ci", "the-wrong-secret-of-ci", "pass-of-a-backend"
ENTRIES = json.dumps(
    [{"name": "ci", "role": "admin", "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest()},
     {"name": "old", "role": "read", "token": WRONG[::-1]}]
)  # fmt: skip


def shown(web: Web) -> str:
    """Return all audit events and all public documents as one text."""
    events = web.env.runtime.database.read(lambda c: [tuple(row) for row in c.execute(audit_events.select())])
    return repr(events) + web.get("/openapi.json").text + web.get("/readyz").text


def test_a_token_appears_in_no_response_log_or_audit_event(make_web: MakeWeb, caplog: pytest.LogCaptureFixture) -> None:
    web = make_web(tokens=ENTRIES, app={"limits": Limits(stream_seconds=0.1, failure_rate=0)})
    right, wrong = web.acting_as(TOKEN), web.acting_as(WRONG)
    with caplog.at_level(logging.DEBUG):
        known = populate(right)
        answers = [request(one, label, known) for label in documented_operations(web) for one in (right, wrong)]
    assert {200, 400, 401, 404, 422} <= {answer.status_code for answer in answers}
    told = "".join(answer.text + repr(answer.headers) for answer in answers) + caplog.text + shown(web)
    assert '"principal":"ci"' in told
    assert [secret for secret in (TOKEN, WRONG, WRONG[::-1]) if secret in told] == []


def test_a_configured_token_is_not_shown_and_only_its_digest_is_kept(make_web: MakeWeb) -> None:
    settings = Settings(tokens=ENTRIES)
    assert WRONG[::-1] not in f"{settings!r} {settings} {settings.model_dump_json()}"
    tokens = Tokens.of(settings)
    assert WRONG[::-1] not in repr(vars(tokens))
    assert tokens.find(WRONG[::-1]) is not None


def test_an_unavailable_backends_url_is_not_revealed(make_web: MakeWeb, caplog: pytest.LogCaptureFixture) -> None:
    web = make_web(
        database_url=f"postgresql+psycopg://user:{PASSWORD}@127.0.0.1:{free_port()}/rqsched",
        redis_url=f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0",
    )
    web.env.runtime.database.patience = NO_PATIENCE
    with caplog.at_level(logging.DEBUG):
        answers = [web.get(path) for path in ("/readyz", SCHEDULES, at(), "/metrics", "/ojs/v1/health")]
    assert [answer.status_code for answer in answers] == [503, 503, 503, 200, 503]
    assert caplog.text
    assert PASSWORD not in "".join(answer.text for answer in answers) + caplog.text
