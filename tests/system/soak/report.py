"""The outcome of every occurrence of a soak, from SQL and from the witnesses' own log."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide import audit
from rqsched.kernel.decide.model import RunKind
from tests.support.stories import Story, expected_occurrences, live_outcomes, read_stories
from tests.system.soak.workflows import OURS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN_FLIGHT = timedelta(seconds=2)
"""A standby lags, so a turn may lose an attempt that was claimed this shortly before it."""


class Attempt(NamedTuple):
    """One attempt that began, as its witness wrote it down."""

    schedule_id: str
    occurrence: str
    uid: str
    number: str
    fence: int
    whose: str
    """The process that executed it: one of ours, or of one that was to be refused."""

    @property
    def at(self) -> datetime:
        """When it was claimed."""
        return _EPOCH + timedelta(microseconds=self.fence)


def read_attempts(log_path: Path) -> list[Attempt]:
    """Read the attempts that the witnesses wrote, in their order."""
    lines = log_path.read_text().splitlines() if log_path.exists() else []
    return [_attempt_of(*line.split()) for line in lines]


def _attempt_of(schedule_id: str, occurrence: str, uid: str, number: str, fence: str, whose: str) -> Attempt:
    return Attempt(schedule_id, occurrence, uid, number, int(fence), whose)


@dataclass
class Turn:
    """One fault of SQL as a whole, and the figures of the time until the next one."""

    name: str
    began: datetime
    may_repeat: bool
    """Whether SQL may have lost confirmed commits, so that their attempts may run a second time."""
    silence_seconds: float = 0.0
    """From when SQL was away, or everything was frozen, until something ran again."""
    executed: int = 0
    """Attempts that began."""
    lost: int = 0
    """Occurrences without any outcome."""
    again: int = 0
    """Attempts that ran a second time under their uid and number, with a later fence."""
    refired: int = 0
    """Occurrences that ran a second time as another run, because SQL no longer knew the first."""
    refused: int = 0
    """Processes of a copy or of an old primary that were refused, as they must be."""


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
    turns: list[Turn] = field(default_factory=list)
    """The faults of SQL as a whole, in order."""
    problems: list[str] = field(default_factory=list)
    """Each lost or doubled occurrence."""

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.doubled and not self.problems

    def assert_clean(self) -> None:
        """Assert that nothing was lost or doubled and that no invariant is broken."""
        assert self.is_clean, self.to_table()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, default=str)

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
        figures = [f"{name:<{width}}  {value:>8}" for name, value in rows]
        return "\n".join([*figures, *_table_of(self.turns), *self.problems])

    def turn_at(self, at: datetime) -> Turn | None:
        """Return the turn to which an instant belongs; None before the first."""
        return next((turn for turn in reversed(self.turns) if turn.began <= at), None)


_SUMS = ("executed", "lost", "again", "refired", "refused")


def _table_of(turns: Sequence[Turn]) -> list[str]:
    """Return a line for each kind of turn, in the order of their first."""
    if not turns:
        return []
    kinds: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        kinds[turn.name].append(turn)
    rows = [["when SQL goes back", "times", "silence", *_SUMS]]
    for name, alike in kinds.items():
        silence = f"{max(turn.silence_seconds for turn in alike):.1f} s"
        sums = [str(sum(getattr(turn, each) for turn in alike)) for each in _SUMS]
        rows.append([name, str(len(alike)), silence, *sums])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def make_report(runtime: Runtime, log_path: Path, turns: Iterable[Turn] = ()) -> Report:
    """Account for every occurrence of every schedule."""
    report = Report(turns=list(turns))
    for story in read_stories(runtime):
        _add(report, story)
    _add_witnessed(report, log_path)
    report.runs = dict(Counter(run.status.value for story in read_stories(runtime) for run in story.runs))
    return report


def _add(report: Report, story: Story) -> None:
    expected = expected_occurrences(story)
    outcomes, wrong = live_outcomes(story, expected)
    lost = sorted(at for at in expected.surely if not outcomes.get(at))
    doubled = {at: found for at, found in outcomes.items() if len(found) > 1}
    report.due += len(expected.surely)
    report.lost += len(lost)
    for at in lost:
        if (turn := report.turn_at(at)) is not None:
            turn.lost += 1
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
    """Count attempts that ran twice. One repetition with a later fence is allowed if SQL may have lost the first.

    The second may be late, behind a buffer, so it counts in the turn of the first.
    """
    before: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for one in read_attempts(log_path):
        report.attempts += 1
        known = before[one.schedule_id, one.occurrence]
        if (turn := report.turn_at(one.at)) is not None:
            turn.executed += 1
        if one.whose != OURS:
            report.problems.append(f"witnessed: {one.whose} executed {one}")
        again = [each for each in known if (each.uid, each.number) == (one.uid, one.number)]
        if again or (known and all(each.uid != one.uid for each in known)):
            _add_repeated(report, one, known, again)
        known.append(one)


def _add_repeated(report: Report, one: Attempt, known: Sequence[Attempt], again: Sequence[Attempt]) -> None:
    turn = report.turn_at(known[-1].at + _IN_FLIGHT)
    if turn is None or not turn.may_repeat or len(again) > 1:
        report.doubled += 1
        report.problems.append(f"witnessed: {one} ran again after {known}, of {turn}")
    elif again:
        turn.again += 1
    else:
        turn.refired += 1
    if turn is not None and one.fence <= max(each.fence for each in known):
        report.problems.append(f"witnessed: the fence of {one} is no later than that of {known}")
