"""Edits: the values that the event of an edit records, and the update that would set them back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rqsched.kernel.decide import edits
from rqsched.kernel.decide.audit import AuditRecord
from rqsched.kernel.decide.edits import FieldUndo
from rqsched.kernel.decide.lifecycle import decide_pause, decide_update
from rqsched.kernel.decide.model import Definition, Schedule
from rqsched.when.spec import Every
from tests.support.decisions import UID, active, definition
from tests.support.env import MINUTE, NOON

LONG = f'{{"args":["{"x" * edits.MAX_RECORDED}"],"kwargs":{{}}}}'
WEBHOOKS = [f'{{"webhook":"https://hooks.example.com/{path}"}}' for path in ("secret-1", "secret-2")]


def edit(schedule: Schedule, wanted: Definition, note: str | None = None) -> tuple[Schedule, AuditRecord]:
    change = decide_update(schedule, wanted, now=NOON + MINUTE, note=note)
    (event,) = change.events
    return change.after, AuditRecord(UID, 2, event.type, event.payload, None, None, NOON + MINUTE)


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"queue": "slow"}, {"queue": [None, "slow"]}),
        ({"labels": '{"a":"b"}'}, {"labels": [{}, {"a": "b"}]}),
        ({"action": '{"args":[1],"kwargs":{}}'}, {"args": [[], [1]]}),
        ({"action": LONG}, {"args": None}),
        ({"notifications": WEBHOOKS[0]}, {"notifications.webhook": [None, "https://hooks.example.com/..."]}),
        ({"notifications": '{"expect_duration":60}'}, {"expect_duration": [None, "1m"]}),
    ],
    ids=["column", "json", "arguments", "too long", "url", "length"],
)
def test_event_has_each_changed_option_before_and_after(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    _, event = edit(active(), definition(**fields))
    assert event.payload["changes"] == changes


def test_event_of_a_changed_url_has_its_host_only() -> None:
    _, event = edit(active(notifications=WEBHOOKS[0]), definition(notifications=WEBHOOKS[1]))
    assert event.payload["changes"] == {"notifications.webhook": ["https://hooks.example.com/..."] * 2}


def test_only_an_edit_with_values_can_be_undone() -> None:
    schedule, event = edit(active(), definition(queue="slow"))
    assert edits.can_undo(event)
    assert not edits.can_undo(replace(event, payload={"changed_fields": ["queue"]}))
    (pause,) = decide_pause(schedule, now=NOON).events
    assert not edits.can_undo(replace(event, event_type=pause.type, payload=pause.payload))


def test_undo_is_the_update_with_the_values_before() -> None:
    schedule, event = edit(active(queue="q"), definition(Every("2h"), labels='{"a":"b"}'), note="x")
    planned = edits.undo(schedule, event)
    assert planned.spec == active().spec.with_clocks(None, None)
    assert (planned.workflow, planned.note, planned.options) == (None, "", {"queue": "q", "labels": {}})
    assert planned.is_possible


def test_undo_of_what_a_later_edit_changed_is_a_conflict() -> None:
    schedule, event = edit(active(), definition(queue="slow"))
    later = replace(schedule, definition=definition(queue="fast"))
    planned = edits.undo(later, event)
    assert planned.conflicts == [FieldUndo("queue", "fast", None, "was changed by a later edit", True)]
    assert not planned.is_possible


def test_undo_leaves_out_what_has_its_value_again_and_what_was_not_recorded() -> None:
    schedule, event = edit(active(), definition(queue="slow", action=LONG, owner="ann"))
    later = replace(schedule, definition=definition(action=LONG, owner="ann"))
    planned = edits.undo(later, event)
    assert planned.options == {"owner": None}
    told = {one.name: one.problem for one in planned.fields}
    assert told == {"owner": "", "args": "was too long to be recorded"}


def test_undo_removes_a_url_that_the_edit_added_and_restores_none_that_it_removed() -> None:
    plain, with_url = definition(), definition(notifications=WEBHOOKS[0])
    added = edits.undo(*edit(active(), with_url))
    assert added.options == {"notifications": {"webhook": None}}
    removed = edits.undo(*edit(active(notifications=WEBHOOKS[0]), plain))
    assert (removed.options, removed.is_possible) == ({}, False)
