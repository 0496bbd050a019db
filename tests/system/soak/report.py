"""What became of every occurrence of a soak, from SQL and from the witnesses' own log."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rqsched.chain.runtime import Runtime
from rqsched.core import audit
from rqsched.core.model import RunKind
from tests.support.stories import Story, live_outcomes, read_stories, required_occurrences


@dataclass
class Report:
    """The figures of one soak."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    disasters: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    due: int = 0
    """Occurrences the specs yielded while the schedules were active."""
    fired: int = 0
    """Occurrences that started a run, at once or after they waited."""
    waiting: int = 0
    """Occurrences that still wait for the run ahead of them: the soak's end paused their schedule."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Occurrences skipped, by reason."""
    missed: int = 0
    """Occurrences counted as missed after an outage."""
    doubled: int = 0
    """Occurrences dispatched twice: two runs, two outcomes, or one attempt that ran twice."""
    lost: int = 0
    """Occurrences without any outcome."""
    longest_gap_seconds: float = 0.0
    """The longest time an occurrence was late before its outcome was recorded."""
    runs: dict[str, int] = field(default_factory=dict)
    """Runs by their last status."""
    attempts: int = 0
    """Attempts that began, as their witnesses wrote down."""
    problems: list[str] = field(default_factory=list)
    """Each lost or doubled occurrence."""

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.doubled and not self.problems

    def assert_clean(self) -> None:
        """Assert that nothing was lost or doubled and that no invariant is broken."""
        assert self.is_clean, self.to_table()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    def to_table(self) -> str:
        """The figures for people, one a line."""
        rows = [
            ("disasters", sum(self.disasters.values())),
            *((f"  {name}", count) for name, count in sorted(self.disasters.items())),
            ("seconds", round(self.seconds)),
            ("occurrences due", self.due),
            ("  fired", self.fired),
            *((f"  skipped: {reason}", count) for reason, count in sorted(self.skipped.items())),
            ("  missed (counted)", self.missed),
            ("  waiting at the end", self.waiting),
            ("  doubled", self.doubled),
            ("  lost", self.lost),
            ("longest gap, seconds", round(self.longest_gap_seconds, 1)),
            ("attempts witnessed", self.attempts),
            *((f"  runs {status}", count) for status, count in sorted(self.runs.items())),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join([*(f"{name:<{width}}  {value:>8}" for name, value in rows), *self.problems])


def make_report(runtime: Runtime, log_path: Path) -> Report:
    """Account for every occurrence of every schedule."""
    report = Report()
    for story in read_stories(runtime):
        _add(report, story)
    _add_witnessed(report, log_path)
    report.runs = dict(Counter(run.status.value for story in read_stories(runtime) for run in story.runs))
    return report


def _add(report: Report, story: Story) -> None:
    required = required_occurrences(story)
    outcomes, wrong = live_outcomes(story, required)
    lost = sorted(at for at in required if not outcomes.get(at))
    doubled = {at: found for at, found in outcomes.items() if len(found) > 1}
    report.due += len(required)
    report.lost += len(lost)
    report.doubled += len(doubled)
    report.problems += wrong
    report.problems += [f"{story.name}: {at} is lost" for at in lost]
    report.problems += [f"{story.name}: {at} has the outcomes {found}" for at, found in doubled.items()]
    _count_outcomes(report, story)
    report.longest_gap_seconds = max(report.longest_gap_seconds, _longest_gap(story))


def _count_outcomes(report: Report, story: Story) -> None:
    live = [run for run in story.runs if run.kind is RunKind.SCHEDULED]
    report.fired += sum(run.trigger_number is not None for run in live)
    report.waiting += sum(run.trigger_number is None for run in live)
    for event in story.events:
        if event.event_type == audit.SKIPPED:
            reason = str(event.payload["reason"])
            report.skipped[reason] = report.skipped.get(reason, 0) + 1
        elif event.event_type == audit.MISSED:
            report.missed += int(event.payload["count"])


def _longest_gap(story: Story) -> float:
    gaps = [0.0]
    for event in story.events:
        oldest = event.payload.get("first") or event.payload.get("occurrence_time")
        is_outcome = event.event_type in {audit.MISSED, audit.SKIPPED, audit.BUFFERED}
        if oldest and (is_outcome or event.payload.get("outcome") == "triggered"):
            gaps.append((event.recorded_at - datetime.fromisoformat(oldest)).total_seconds())
    return max(gaps)


def _add_witnessed(report: Report, log_path: Path) -> None:
    lines = log_path.read_text().splitlines() if log_path.exists() else []
    entries = [tuple(line.split()) for line in lines]
    report.attempts = len(entries)
    by_occurrence: dict[tuple[str, str], set[str]] = defaultdict(set)
    for schedule_id, occurrence, uid, _ in entries:
        by_occurrence[schedule_id, occurrence].add(uid)
    twice = [f"witnessed: {key} was dispatched as {uids}" for key, uids in by_occurrence.items() if len(uids) > 1]
    repeated = Counter((uid, attempt) for _, _, uid, attempt in entries)
    twice += [f"witnessed: attempt {key} ran {count} times" for key, count in repeated.items() if count > 1]
    report.doubled += len(twice)
    report.problems += twice
