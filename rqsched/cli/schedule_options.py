"""The options of create, upsert and update, in groups: when, what, policies, and metadata."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, cast

import typer

from rqsched.cli import parsing
from rqsched.cli.arguments import METADATA, POLICY, TOLD, WHAT, WHEN, Overlap, Texts
from rqsched.cli.output import notice
from rqsched.core.notifications import TARGETS, Notifications
from rqsched.core.policy import CatchUp, Exhausted, MissedPolicy, RetryPolicy
from rqsched.core.schedule_options import Options
from rqsched.errors import InvalidInputError, InvalidPayloadError
from rqsched.spec.spec import Cron, Every, Once, Spec


@dataclass(frozen=True)
class Timing:
    """The options that say when it happens."""

    cron: Annotated[Texts, typer.Option("--cron", help="Cron expression; may be repeated.", rich_help_panel=WHEN)] = (
        None
    )
    cron_seconds: Annotated[
        str | None,
        typer.Option(
            "--cron-seconds",
            metavar="first|last",
            help="Where six cron fields have their seconds: first (default), or last as in RQ's cron.",
            rich_help_panel=WHEN,
        ),
    ] = None
    interval: Annotated[
        Texts,
        typer.Option("--interval", "--every", help="`30m`, `PT30M` or seconds; may be repeated.", rich_help_panel=WHEN),
    ] = None
    offset: Annotated[
        str | None,
        typer.Option("--offset", help="Align the interval to the clock, plus this much.", rich_help_panel=WHEN),
    ] = None
    from_completion: Annotated[
        bool,
        typer.Option("--from-completion", help="Count the interval from the end of each run.", rich_help_panel=WHEN),
    ] = False
    once: Annotated[
        Texts, typer.Option("--once", help="One instant, ISO 8601; may be repeated.", rich_help_panel=WHEN)
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", "--tz", help="The timezone of cron expressions; default UTC.", rich_help_panel=WHEN),
    ] = None
    start_at: Annotated[
        str | None, typer.Option("--start-at", help="No occurrence before this instant.", rich_help_panel=WHEN)
    ] = None
    end_at: Annotated[
        str | None, typer.Option("--end-at", help="No occurrence from this instant on.", rich_help_panel=WHEN)
    ] = None
    jitter: Annotated[
        str | None, typer.Option("--jitter", help="The most a fire is delayed, such as 30s.", rich_help_panel=WHEN)
    ] = None

    def spec(self) -> Spec:
        """Return the declared spec; raises InvalidInputError when there is no timing option."""
        members = self._members()
        if not members:
            raise InvalidInputError("spec", "is missing; give --cron, --interval or --once")
        return Spec(members, self.timezone or "UTC", *self._window())

    def changed(self, current: Spec, unset: Sequence[str]) -> Spec | None:
        """Return the spec after a change, which keeps what is not given. None when nothing is given."""
        said = (self.timezone, self.start_at, self.end_at)
        members = self._members()
        if not (members or any(said) or {"start-at", "end-at"} & set(unset)):
            return None
        start_at, end_at = self._window()
        return Spec(
            members or current.members,
            self.timezone or current.timezone,
            None if "start-at" in unset else start_at or current.start_at,
            None if "end-at" in unset else end_at or current.end_at,
        )

    def options(self) -> Options:
        """Return the options of this group that are not part of the spec."""
        return {} if self.jitter is None else {"jitter": parsing.span("--jitter", self.jitter)}

    def _members(self) -> list[Cron | Every | Once]:
        offset = None if self.offset is None else parsing.span("--offset", self.offset)
        if not self.interval and (offset is not None or self.from_completion):
            raise InvalidInputError("--interval", "is missing; --offset and --from-completion need it")
        every = [
            Every(parsing.span("--interval", text), offset=offset, from_completion=self.from_completion)
            for text in self.interval or ()
        ]
        once = [Once(parsing.instant("--once", text)) for text in self.once or ()]
        return [*self._crons(), *every, *once]

    def _crons(self) -> list[Cron]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            crons = [Cron(text, seconds=cast("Any", self.cron_seconds)) for text in self.cron or ()]
        for warning in told:
            notice(f"Warning: {warning.message}")
        return crons

    def _window(self) -> tuple[Any, Any]:
        start_at = None if self.start_at is None else parsing.instant("--start-at", self.start_at)
        return start_at, None if self.end_at is None else parsing.instant("--end-at", self.end_at)


@dataclass(frozen=True)
class Action:
    """The options that say what a run executes, and where."""

    args: Annotated[
        str | None, typer.Option("--args", help="Positional arguments, a JSON list.", rich_help_panel=WHAT)
    ] = None
    kwargs: Annotated[
        str | None, typer.Option("--kwargs", help="Keyword arguments, a JSON object.", rich_help_panel=WHAT)
    ] = None
    input_file: Annotated[
        typer.FileText | None,
        typer.Option(
            "--input-file",
            encoding="utf-8",
            help="A file of JSON, - is standard input: a list as --args, an object as --kwargs.",
            rich_help_panel=WHAT,
        ),
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="The queue of its runs.", rich_help_panel=WHAT)] = (
        None
    )
    connection: Annotated[
        str | None, typer.Option("--connection", help="The named Redis of its runs.", rich_help_panel=WHAT)
    ] = None
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="The longest an attempt may take.", rich_help_panel=WHAT)
    ] = None
    priority: Annotated[
        int | None, typer.Option("--priority", help="Above 0: runs go to the front of the queue.", rich_help_panel=WHAT)
    ] = None
    executor: Annotated[str | None, typer.Option("--executor", help="`rq` or `external`.", rich_help_panel=WHAT)] = None

    def options(self) -> Options:
        """Return the options that were given."""
        return given(
            **self._arguments(),
            queue=self.queue,
            connection=self.connection,
            timeout=None if self.timeout is None else parsing.seconds("--timeout", self.timeout),
            priority=self.priority,
            executor=self.executor,
        )

    def _arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "args": self.args and parsing.json_of("--args", self.args, list),
            "kwargs": self.kwargs and parsing.json_of("--kwargs", self.kwargs, dict),
        }
        if self.input_file is None:
            return found
        option = "--input-file"
        try:
            content = parsing.json_of(option, self.input_file.read(), list, dict)
        except UnicodeDecodeError:
            raise InvalidPayloadError(option, "is not UTF-8") from None
        name = "args" if isinstance(content, list) else "kwargs"
        if found[name] is not None:
            raise InvalidInputError(option, f"contradicts --{name}; give one of them")
        return found | {name: content}


@dataclass(frozen=True)
class Policy:
    """The options about overlap, missed occurrences, failures and limits."""

    overlap: Overlap = None
    """What a fire does while an earlier run is unfinished; None leaves it as it is."""
    buffer_limit: Annotated[
        int | None, typer.Option("--buffer-limit", help="The most runs that wait.", rich_help_panel=POLICY)
    ] = None
    missed: Annotated[
        str | None,
        typer.Option(
            "--missed", help=f"What to do about missed occurrences: {', '.join(MissedPolicy)}.", rich_help_panel=POLICY
        ),
    ] = None
    catch_up_window: Annotated[
        str | None,
        typer.Option("--catch-up-window", help="Occurrences later than this are missed.", rich_help_panel=POLICY),
    ] = None
    catch_up_limit: Annotated[
        int | None,
        typer.Option(
            "--catch-up-limit", help="The most runs one fire starts under --missed all.", rich_help_panel=POLICY
        ),
    ] = None
    catch_up: Annotated[
        str | None,
        typer.Option("--catch-up", help=f"Where resume continues: {', '.join(CatchUp)}.", rich_help_panel=POLICY),
    ] = None
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", help="How many runs may start.", rich_help_panel=POLICY)
    ] = None
    on_exhausted: Annotated[
        str | None,
        typer.Option("--on-exhausted", help="What follows --max-runs: done or delete.", rich_help_panel=POLICY),
    ] = None
    total_repeats: Annotated[
        int | None,
        typer.Option("--total-repeats", help="The schedule is done after so many successes.", rich_help_panel=POLICY),
    ] = None
    environment: Annotated[
        Texts,
        typer.Option("--environment", help="Fire only in this RQSCHED_ENV; may be repeated.", rich_help_panel=POLICY),
    ] = None
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            help="How much history is kept: 90d, 1000 (runs), '90d 1000', or 0 for all.",
            rich_help_panel=POLICY,
        ),
    ] = None
    max_retries: Annotated[
        int | None, typer.Option("--max-retries", help="Attempts after the first; default 3.", rich_help_panel=POLICY)
    ] = None
    then: Annotated[
        str | None,
        typer.Option("--then", help=f"What follows a failed run: {', '.join(Exhausted)}.", rich_help_panel=POLICY),
    ] = None
    backoff_base: Annotated[
        str | None, typer.Option("--backoff-base", help="The first delay of a retry.", rich_help_panel=POLICY)
    ] = None
    backoff_factor: Annotated[
        float | None,
        typer.Option("--backoff-factor", help="How much each delay grows; default 2.", rich_help_panel=POLICY),
    ] = None
    backoff_cap: Annotated[
        str | None,
        typer.Option("--backoff-cap", help="The longest delay; default 10 times the base.", rich_help_panel=POLICY),
    ] = None
    max_consecutive_failures: Annotated[
        int | None,
        typer.Option(
            "--max-consecutive-failures",
            help="The schedule is dead after so many failed runs in a row.",
            rich_help_panel=POLICY,
        ),
    ] = None

    def options(self, retry: RetryPolicy | None = None) -> Options:
        """Return the options that were given; those about retries change `retry`."""
        changes = self._retry()
        return given(
            overlap=self.overlap,
            buffer_limit=self.buffer_limit,
            missed=self.missed,
            catch_up_window=span("--catch-up-window", self.catch_up_window),
            catch_up_limit=self.catch_up_limit,
            catch_up=self.catch_up,
            max_runs=self.max_runs,
            on_exhausted=self.on_exhausted,
            total_repeats=self.total_repeats,
            environments=self.environment,
            retention=self.retention,
            retry=replace(retry or RetryPolicy(), **changes) if changes else None,
        )

    def _retry(self) -> dict[str, Any]:
        said = {
            "max_retries": self.max_retries,
            "then": self.then,
            "base": span("--backoff-base", self.backoff_base),
            "factor": self.backoff_factor,
            "cap": span("--backoff-cap", self.backoff_cap),
            "max_consecutive_failures": self.max_consecutive_failures,
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True)
class Metadata:
    """Data about the schedule; runs get copies of labels, memo and search attributes."""

    label: Annotated[
        Texts, typer.Option("--label", "-l", help="name=value; may be repeated.", rich_help_panel=METADATA)
    ] = None
    memo: Annotated[str | None, typer.Option("--memo", help="A JSON object.", rich_help_panel=METADATA)] = None
    search_attribute: Annotated[
        Texts,
        typer.Option("--search-attribute", help="name=value, JSON or text; repeatable.", rich_help_panel=METADATA),
    ] = None
    description: Annotated[
        str | None, typer.Option("--description", help="What it is for.", rich_help_panel=METADATA)
    ] = None
    owner: Annotated[
        str | None, typer.Option("--owner", help="Who owns it; `list` filters by it.", rich_help_panel=METADATA)
    ] = None

    def options(self) -> Options:
        """Return the options that were given."""
        attributes = self.search_attribute
        return given(
            labels=self.label and parsing.pairs("--label", self.label),
            memo=self.memo and parsing.json_of("--memo", self.memo, dict),
            search_attributes=attributes and parsing.json_pairs("--search-attribute", attributes),
            description=self.description,
            owner=self.owner,
        )


@dataclass(frozen=True)
class Telling:
    """Who is told of failures, and of a success that does not come."""

    on_failure: Annotated[
        str | None, typer.Option("--on-failure", help="The workflow that is told of failures.", rich_help_panel=TOLD)
    ] = None
    on_recovery: Annotated[
        str | None,
        typer.Option("--on-recovery", help="The one that is told of the first success after.", rich_help_panel=TOLD),
    ] = None
    expect_success_within: Annotated[
        str | None,
        typer.Option(
            "--expect-success-within", help="Overdue without a success for so long, such as 26h.", rich_help_panel=TOLD
        ),
    ] = None
    webhook: Annotated[
        str | None, typer.Option("--webhook", help="The URL that events are posted to.", rich_help_panel=TOLD)
    ] = None
    event: Annotated[
        Texts, typer.Option("--event", help="An event the webhook gets; may be repeated.", rich_help_panel=TOLD)
    ] = None
    heartbeat: Annotated[
        str | None,
        typer.Option("--heartbeat", help="The URL that is pinged by starts and ends of runs.", rich_help_panel=TOLD),
    ] = None
    sentry: Annotated[
        str | None, typer.Option("--sentry", help="The slug of the monitor in Sentry.", rich_help_panel=TOLD)
    ] = None

    def options(self, current: Notifications | None = None) -> Options:
        """Return the options that were given; those about `notifications` change the current ones."""
        said = {"webhook": self.webhook, "events": self.event, "heartbeat": self.heartbeat, "sentry": self.sentry}
        changes = {name: value for name, value in said.items() if value}
        kept = {name: getattr(current, name) for name in TARGETS} if current else {}
        return given(
            on_failure=self.on_failure,
            on_recovery=self.on_recovery,
            expect_success_within=span("--expect-success-within", self.expect_success_within),
            notifications={**kept, **changes} if changes else None,
        )


_BLANK: dict[str, Any] = {
    "queue": None, "connection": None, "timeout": None, "priority": 0, "max-runs": None, "total-repeats": None,
    "buffer-limit": None, "catch-up-window": None, "environments": (), "retry": None, "jitter": timedelta(0),
    "retention": None,
    "targets": None, "target-retry": None, "target-timeout": None, "max-parallel": None,
    "labels": {}, "memo": {}, "search-attributes": {}, "description": None, "owner": None,
    "args": [], "kwargs": {},
    "on-failure": None, "on-recovery": None, "expect-success-within": None, "notifications": None,
}  # fmt: skip
_OF_SPEC = ("start-at", "end-at")


def blanked(unset: Sequence[str]) -> Options:
    """Return the blank value of each named option; raises InvalidInputError for one that cannot be blank."""
    for name in unset:
        if name not in _BLANK and name not in _OF_SPEC:
            known = ", ".join(sorted([*_BLANK, *_OF_SPEC]))
            raise InvalidInputError("--unset", f"{name!r} is not one of {known}")
    return cast("Options", {name.replace("-", "_"): _BLANK[name] for name in unset if name in _BLANK})


def given(**said: Any) -> Options:
    """Return the options that were given."""
    return cast("Options", {name: value for name, value in said.items() if value is not None})


def span(option: str, text: str | None) -> timedelta | None:
    """Read a length of time, if one was given."""
    return None if text is None else parsing.span(option, text)
