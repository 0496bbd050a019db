"""Make the examples of the OpenAPI document. If a schema has no example, its fields' types and names yield one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic.config import JsonDict

_START, _END = "2026-01-31T02:00:00Z", "2026-01-31T02:00:42Z"
_UID = "01KG8J6R00V4ZQ3N7M5T2X9C1B"
_NAMED = f"schedule:nightly:{_START}"
VALUES: Mapping[str, Any] = {
    "action": {"workflow_type": "invoice-sync", "input": ["eu"]}, "answer": "ran", "args": ["eu"], "assumed": [],
    "attempt": 1, "attempts": [], "backend": "rq", "backfill_id": _UID, "bound": 10_000, "buffered_actions": [],
    "by": "ada", "changed_by": "ada", "changes": [], "code": "invalid_cron", "completed_at": _END, "count": 1,
    "counts": {"succeeded": 1}, "created": ["nightly"], "cron": "0 2 * * *", "cron_expressions": ["0 2 * * *"],
    "database": True, "destination": "hooks.example.org", "done": 1, "due_at": _START, "enabled": True, "ended": 1,
    "ended_at": _END, "event_type": "ScheduleTriggered", "exclude": ["2026-12-25/2026-12-26", "2027-01-01"],
    "executor": "rq", "expression": "0 2 * * *", "extensions": [], "field": "cron", "fires": 1, "history": [],
    "id": "nightly", "instance_id": _NAMED, "intervals": [], "is_frozen": True, "kind": "scheduled",
    "last_outcome": "succeeded", "last_instance_id": _NAMED, "last_run_uid": _UID, "matched": 1, "max_attempts": 3,
    "message": "must have 5 fields", "minutes": [0, 0, 1], "moved_from": [], "name": "nightly", "namespace": "default",
    "next_fire": _START, "next_fire_at": _START, "next_run_at": _START, "number": 1, "ojs_version": "1.0",
    "outcome": "started", "overlap": "skip", "overlap_policy": "skip", "peak_fires": 1, "previous_state": "active",
    "protocols": ["http"], "queue": "default", "rate": "100/min", "reaches": "2027-12-31", "redis": True, "removed": [],
    "revision": 1, "run_count": 1, "run_id": _UID, "run_uid": _UID, "schedule_id": "nightly", "schedule_uid": _UID,
    "schedules": ["nightly"], "schema": True, "sequence": 1, "server": "rqsched", "skips": [],
    "spec": {"cron_expressions": ["0 2 * * *"], "timezone": "Europe/Berlin"}, "specversion": "1.0", "started": 1,
    "started_at": _START, "status": "succeeded", "success_count": 1, "tags": [], "target_id": "customer-17",
    "text": "It ran at 02:00.", "timeout_ms": 300_000, "timezone": "Europe/Berlin", "timing": "0 2 * * *",
    "timing_in_words": "at 02:00", "total": 1, "type": "invoices.sync", "uid": _UID, "unchanged": [], "updated": [],
    "used": 1, "version": "0.1.0", "warnings": [], "workflow": "invoice-sync",
    "workflow_id": _NAMED,
    "workflow_instance_id": _NAMED, "workflow_run_id": _UID, "workflow_type": "invoice-sync", "x_jobs_cancelled": [],
    **{f"{owner}.status": "active" for owner in (
        "Cron", "DurableSchedule", "DurableScheduleResponse", "DurableState", "ScheduleResponse", "ScheduleSummary",
    )},
    **{f"{owner}.status": "done" for owner in ("BackfillResponse", "BackfilledResponse")},
    **{f"{owner}.name": "holidays" for owner in ("CalendarResponse", "CalendarUse")},
    **{f"{owner}.workflow_id": "invoice-sync" for owner in ("ScheduleResponse", "ScheduleSummary")},
    **{f"{owner}.version": 1 for owner in ("ScheduleResponse", "ScheduleSummary")},
    "BulkResponse.counts": {"paused": 1}, "BulkRowResponse.outcome": "paused", "DeliveryResponse.kind": "webhook",
    "FreezeResponse": {"frozen": True, "since": _START, "by": "ada"}, "WaitingRunResponse.status": "pending",
    "LimitResponse.name": "tenant:42", "LimitResponse.number": 5,
    "NamespaceDataResponse.rows": {"runs": 4711}, "TriggerResponse.outcome": "triggered",
    "WorkflowResponse.name": "invoice-sync",
}  # fmt: skip
"""Example values by name: of a field, of a schema, or of both (`schema.field`)."""
_HAS_OWN = re.compile(r"\$ref|uuid")
"""Matches schemas of fields whose example is not taken from the values above."""
_BY_FORMAT = {"date-time": _START, "date": "2026-01-31", "uuid": "0197a3c2-5f00-7000-8000-000000000001"}
_TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


def shown(example: dict[str, Any]) -> JsonDict:
    """Return the `json_schema_extra` of a model with this example."""
    return {"examples": [example]}


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], owner: str = "", name: str = "") -> Any:
    """Return a value that a schema allows. An object gets its required fields.

    `schemas` contains the schemas to which `schema` may refer. If `owner` and `name` are given, `schema` belongs to the
    field `name` of the schema `owner`.
    """
    if "$ref" in schema:
        named = schema["$ref"].rpartition("/")[2]
        return VALUES.get(named) or example_of(schemas[named], schemas, named)
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    value = VALUES.get(f"{owner}.{name}", VALUES.get(name))
    kinds = [one.get("type") for one in schema.get("anyOf", [schema])]
    if value is not None and _TYPES[type(value)] in kinds and not _HAS_OWN.search(str(schema)):
        return value
    if "anyOf" in schema:
        first = schema["anyOf"][0]
        return example_of(first, schemas, owner, name) if "$ref" in first or "null" not in kinds else None
    return _of_type(schema, schemas, owner)


def _of_type(schema: Mapping[str, Any], schemas: Mapping[str, Any], owner: str) -> Any:
    match schema.get("type"):
        case "object":
            fields, required = schema.get("properties", {}).items(), schema.get("required", ())
            return {field: example_of(inner, schemas, owner, field) for field, inner in fields if field in required}
        case "array":
            is_named = schema["items"].keys() & {"$ref", "anyOf", "format"}
            return [example_of(schema["items"], schemas)] if is_named else []
        case "string":
            return _BY_FORMAT.get(schema.get("format", ""), "...")
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return schema.get("default", False)
    return None
