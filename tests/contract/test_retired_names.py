"""Names that were retired for a word of docs/glossary.md do not come back: in code, tests, metrics, JSON, log actions.

Columns, Redis keys, migrations and the decisions of docs/adr keep their names.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

from tests.contract.test_layers import KINDS
from tests.support.processes import REPOSITORY

MODULES = {
    "answers": "responses",
    "asking": "requests",
    "beat": "heartbeats",
    "bodies": "schemas",
    "borrowed": "existing_connection",
    "callers": "caller_transaction",
    "catchup": "occurrences",
    "days": "cron",
    "declaring": "declarations",
    "definition": "define",
    "describe": "build_description",
    "draft": "change_builder",
    "endings": "schedule_endings",
    "external": "features/external/chain",
    "facts": "metadata",
    "fanout_targets": "features/fan_out/store",
    "fields": "convert",
    "fitting": "page_size",
    "forms": "schemas",
    "hold": "kernel/decide/freeze, kernel/chain/freeze_gate",
    "holding": "features/freeze/chain",
    "keys": "idempotency",
    "lane": "job_queue",
    "links": "kernel/chain/fire, or reconcile/schedules",
    "member": "members",
    "nearest": "did_you_mean",
    "offer": "overlap",
    "on_exhausted": "on_max_runs",
    "on_timing": "declare",
    "own_transaction": "caller_transaction",
    "presence": "heartbeats",
    "reading": "requests",
    "registration": "convert",
    "scans": "kernel/queries/reconcile",
    "schema": "schema_version",
    "scripts": "lua",
    "sending": "http",
    "settlement": "settle_decision",
    "shapes": "schemas",
    "start": "runs_on_request",
    "tally": "telemetry",
    "target_ends": "features/fan_out/decide",
    "targets": "features/fan_out/store",
    "unfollowed": "resync",
}
"""Former names of files of the package, which no alias of an import may bring back."""

NAMES = {
    "BackfillResult": "BackfillProgress",
    "BorrowedDialect": "ExistingConnectionDialect",
    "CallersTransaction": "CallerTransaction",
    "Draft": "ChangeBuilder",
    "Ending": "AttemptOutcome",
    "Exhausted": "FailurePolicy",
    "HeldError": "FrozenError",
    "HeldRun": "WaitingRun",
    "HeldSchedule": "DueSchedule",
    "Hold": "Freeze",
    "HoldGate": "FreezeGate",
    "Lane": "JobQueue",
    "Offer": "StartRequest",
    "RQSCHED_HOLD": "RQSCHED_FREEZE",
    "ReleasePreview": "ThawPreview",
    "Released": "Thawed",
    "Survey": "DueOccurrences",
    "Verdict": "OverlapDecision, AttemptResult",
    "beat_interval": "heartbeat_interval",
    "begin_epoch": "flush marker",
    "block_delay": "offer_delay",
    "borrowing_engine": "engine_over",
    "breathe": "pause_between_chunks",
    "CatchUp": "OnResume",
    "DEFAULT_CATCH_UP_LIMIT": "DEFAULT_MISSED_LIMIT",
    "RQSCHED_ENV": "RQSCHED_ENVIRONMENT",
    "RQSCHED_GRACE": "RQSCHED_REPAIR_GRACE",
    "callers_transaction": "caller_transaction",
    "catch_up": "on_resume",
    "catch_up_limit": "missed_limit",
    "catch_up_window": "fire_within",
    "clock_refresh": "clock_check_interval",
    "epoch_key": "database id",
    "facts": "payload, fields, labels, metadata: the one it is",
    "fanout_targets": "fan_out_targets",
    "follow_unfollowed": "resync_redis",
    "foreign_epoch": "database id",
    "has_epoch": "database id",
    "iter_backfill": "backfill_in_chunks",
    "lane": "job_queue",
    "latest_instance_id": "last_instance_id",
    "latest_run_uid": "last_run_uid",
    "lifeless": "without_heartbeat",
    "mark_epoch": "database id",
    "mend": "repair",
    "mend_failed": "repair_failed",
    "mended": "repaired",
    "nextless": "without_next_time",
    "on_exhausted": "on_max_runs",
    "on_timing": "declare",
    "own_transaction": "caller_transaction",
    "redis_breaker": "redis_timeout",
    "resume_catch_up": "resume_mode",
    "retry_delay": "kernel/decide/delays.py: backoff",
    "iter_backfills": "backfills.iter",
    "iter_limits": "limits.iter",
    "killed_overdue": "killed_overrun",
    "preview_release": "preview_thaw",
    "release_reason": "thaw_reason",
    "released_at": "thawed_at",
    "released_by": "thawed_by",
    "rqsched_held": "rqsched_all_frozen",
    "preview_delete_namespace": "namespaces.preview_delete",
    "preview_sync": "sync(dry_run=True)",
    "rqsched_overdue": "rqsched_late",
    "rqsched_overdue_seconds": "rqsched_late_seconds",
    "rqsched_mended_total": "rqsched_repaired_total",
    "sight": "compare_heartbeats",
    "survey": "classify_due",
    "take_turn": "acquire_interval",
    "timed_otherwise": "with_old_tzdata",
    "told_apart": "split_transaction",
    "unfollowed": "out_of_sync",
}
"""Classes, functions, parameters, metrics, JSON keys and log actions, with what replaced them."""

_OF_OTHER_DOCUMENTS = {
    "buffered_actions": "buffered_count",
    "expect_success_within_seconds": "expect_success_within",
    "overlap_policy": "overlap",
    "remaining_actions": "remaining_runs",
}
_OF_PIPELIT = {"total_repeats": "max_successes"}
IN_FOLDER = {
    "rqsched/api": _OF_OTHER_DOCUMENTS
    | _OF_PIPELIT
    | {"newest_first": 'sort="-created"', "Rows": "Sequence", "History": "Sequence"},
    "rqsched/features/declarations/declarations.py": {"id": "schedule_id"},
    "rqsched/cli": _OF_OTHER_DOCUMENTS | _OF_PIPELIT,
    "rqsched/client": _OF_OTHER_DOCUMENTS | _OF_PIPELIT,
    "rqsched/http/native": _OF_OTHER_DOCUMENTS,
    "rqsched/kernel/decide": {"Outcome": "StartResult", "World": "FireContext", "seal": "build"},
    "rqsched/kernel/chain": {"Rest": "no_pause", "witness": "flush_marker"},
    "rqsched/kernel/transport": {
        "Kind": "JobKind",
        "Post": "JobSpec",
        "Presence": "heartbeat",
        "tally": "telemetry",
        "witness": "flush_marker",
    },
    "tests": {
        "Cluster": "LiveEnv",
        "Desk": "Cli",
        "Office": "Env",
        "Rig": "Env",
        "Site": "Web",
        "rig": "env",
    },
    "tests/dashboard": {"World": "Showcase: a World is that of the shuffled worlds"},
    "rqsched/dev": {"Frame": "Snapshot", "News": "EventLog", "Place": "Location"},
}
"""Names that were retired in one folder or file only; elsewhere they are plain words."""
OF_FEATURES = {
    "rqsched/api": KINDS["api"],
    "rqsched/cli": ("cli", "load_cli", "upcoming_cli", "export", "schedule_file"),
    "rqsched/http/native": ("http",),
    "rqsched/kernel/decide": KINDS["decide"],
    "rqsched/kernel/chain": KINDS["chain"],
}
"""The files of features and of the simulation to which the names of a folder belong, too."""

FOLDERS = ("rqsched", "tests", "benchmarks", "examples")
KEPT = ("migrations", "adr")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
CODE_IN_PAGE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (
            path for path in (REPOSITORY / folder).rglob("*.py") if not {*KEPT} & {*path.relative_to(REPOSITORY).parts}
        )


def pages() -> Iterator[Path]:
    yield from (
        path for path in (REPOSITORY / "docs").rglob("*.md") if not {*KEPT} & {*path.relative_to(REPOSITORY).parts}
    )
    yield from REPOSITORY.glob("*.md")


def files_in(folder: str) -> Iterator[Path]:
    """Yield the files in which the names of IN_FOLDER for a folder, or for one file, are retired."""
    if folder.endswith(".py"):
        yield REPOSITORY / folder
    else:
        yield from (REPOSITORY / folder).rglob("*.py")
    for stem in OF_FEATURES.get(folder, ()):
        yield from (REPOSITORY / "rqsched" / "features").glob(f"*/{stem}.py")
        yield from (REPOSITORY / "rqsched" / "simulate").glob(f"{stem}.py")


def names_in(path: Path, wanted: Container[str]) -> Iterator[tuple[int, str]]:
    """Yield the wanted names of a file: identifiers, and texts that are nothing but one, such as a JSON key."""
    if any(word.lstrip("_") in wanted for word in words_in(path)):  # to tokenize takes long
        yield from ((line, name) for line, name in _tokens_in(path) if name in wanted)


@cache
def words_in(path: Path) -> frozenset[str]:
    return frozenset(IDENTIFIER.findall(path.read_text()))


def _tokens_in(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string.lstrip("_")
        elif token.type == tokenize.STRING:
            text = token.string.strip("rbfu").strip("\"'")
            if IDENTIFIER.fullmatch(text):
                yield token.start[0], text


def test_no_retired_name_is_in_the_code() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name} is now {NAMES[name]}"
        for path in sources()
        if path != Path(__file__)
        for line, name in names_in(path, NAMES)
    ]
    assert found == []


def test_no_name_comes_back_in_the_folder_where_it_was_retired() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name} is now {names[name]}"
        for folder, names in IN_FOLDER.items()
        for path in files_in(folder)
        if path != Path(__file__)
        for line, name in names_in(path, names)
    ]
    assert found == []


def test_no_retired_name_is_in_the_docs() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}: {name} is now {NAMES[name]}"
        for path in pages()
        for code in CODE_IN_PAGE.findall(path.read_text())
        for name in IDENTIFIER.findall(code)
        if name in NAMES and path.name != "CHANGELOG.md"
    ]
    assert found == []


def test_no_file_and_no_alias_has_a_retired_name() -> None:
    package = [path for path in sources() if path.is_relative_to(REPOSITORY / "rqsched")]
    files = [str(path.relative_to(REPOSITORY)) for path in package if path.stem in MODULES]
    alias = re.compile(r"^(?:from [\w.]+ )?import [\w.]+ as (\w+)$", re.MULTILINE)
    aliases = [
        f"{path.relative_to(REPOSITORY)}: as {name}"
        for path in sources()
        for name in alias.findall(path.read_text())
        if name in MODULES
    ]
    assert files + aliases == []


def test_what_replaced_a_file_is_there() -> None:
    package = [path for path in sources() if path.is_relative_to(REPOSITORY / "rqsched")]
    files = [f"/{path.with_suffix('').as_posix()}" for path in package]
    advice = [word for words in MODULES.values() for word in re.split(r", (?:or )?", words)]
    names = {name for path in package for _, name in names_in(path, advice)}
    lost = [word for word in advice if word not in names and not any(file.endswith(f"/{word}") for file in files)]
    assert lost == []
