"""The source `rq-cron`: the jobs that a configuration file of RQ's own cron registers.

The file is code, and reading it runs it, so the user must trust it. The jobs exist only in the process of `rq cron`.
Therefore an import cannot disable them, and the user must stop `rq cron`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from croniter import CroniterBadDateError, croniter
from redis import Redis
from rq.cron import CronScheduler
from rq.defaults import DEFAULT_RESULT_TTL
from rq.exceptions import TimeoutFormatError
from rq.utils import parse_timeout

from rqsched.clock import SystemClock
from rqsched.errors import ConfigError, InvalidInputError
from rqsched.importers.cron_fields import ClockChanges, Following, require_same_times, unwrapped
from rqsched.importers.rq_jobs import call_of, entry_of, lost_timeout
from rqsched.importers.source import Reading, SourceEntry, derived_id, named_id
from rqsched.importers.unpickle import NotReadableError
from rqsched.workflows import import_failure

KIND = "rq-cron"
_FILE_MODULE = "rq_cron_config_"
"""The module name that RQ gives to a configuration file that is named by a path. No worker can import this module."""
_LOST = {
    "ttl": "Its ttl is lost: runs wait in their queue without a limit.",
    "failure_ttl": "Its failure_ttl is lost: RQSCHED_RETENTION sets how long runs are kept.",
    "webhooks": "Its webhooks are lost: see the option notifications.",
}


def open_source(address: str, reading: Reading) -> RqCron:
    """Run a configuration file, given as a path or a dotted module, and read the jobs that it registers.

    Raises InvalidInputError if the file is not trusted, and ConfigError if it cannot be run.
    """
    if not reading.is_trusted:
        raise InvalidInputError(
            "--trust-source", f"is missing: {address} is code, and reading it runs it, as `rq cron` does"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    registered = _Registered()
    try:
        registered.load_config_from_file(address)
    except (Exception, SystemExit) as error:
        why = import_failure(error) if isinstance(error, Exception) else f"it exits ({error})"
        raise ConfigError(
            f"{address} cannot be run as a configuration of `rq cron`: {why}. Correct it and run this again."
        ) from error
    return RqCron(registered.given, reading)


class _Registered(CronScheduler):
    """Collects every job that a file registers. RQ's own class would drop the jobs that it refuses."""

    def __init__(self) -> None:
        logging.getLogger("rq.cron").addHandler(
            logging.NullHandler()
        )  # otherwise RQ adds a handler that writes to stdout
        super().__init__(connection=Redis())  # never connects
        self.given: list[dict[str, Any]] = []

    def register(self, *_: object, **given: Any) -> Any:
        self.given.append(given)


class RqCron:
    """The jobs of one configuration file."""

    kind = KIND
    cannot_disable = (
        "an import cannot disable jobs of `rq cron`, which are in its file: stop `rq cron`, then run this with "
        "--source-is-stopped"
    )

    def __init__(self, given: Sequence[Mapping[str, Any]], reading: Reading) -> None:
        self._given = given
        self._reading = reading
        self.notes: list[str] = []
        """The notes that hold for each of its entries."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def entries(self) -> list[SourceEntry]:
        """Return the jobs that the file registers. They have no next times, because RQ computes these when it runs."""
        names = [given.get("name") for given in self._given]
        found = [self._entry(given, names.count(given.get("name")) == 1) for given in self._given]
        self.notes = []
        if self._reading.timezone is None and any(one.entry and "cron" in one.entry for one in found):
            self.notes.append(
                "RQ reads cron expressions in the zone of the host of `rq cron`. They are imported in UTC, unless "
                "--timezone names that zone."
            )
        return found

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Raise InvalidInputError, which says what to do instead."""
        del entries
        raise InvalidInputError("--disable-source", self.cannot_disable)

    def _entry(self, given: Mapping[str, Any], is_named: bool) -> SourceEntry:
        function = given["func"]
        path = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
        try:
            _require_of_module(function, path)
            return self._read(given, path, given.get("name") if is_named else None)
        except (NotReadableError, TimeoutFormatError, KeyError, TypeError, ValueError) as error:
            return SourceEntry(given.get("name") or path, None, (f"It cannot become a schedule: {error}.",))

    def _read(self, given: Mapping[str, Any], path: str, name: str | None) -> SourceEntry:
        call = call_of(path, given.get("args"), given.get("kwargs"))
        when, changed = self._when(given)
        timeout = parse_timeout(given.get("job_timeout"))
        timing = [when.get("interval"), when.get("cron")]
        schedule_id = named_id(KIND, name) if name else derived_id(KIND, call.workflow, call.args, call.kwargs, timing)
        entry = {"schedule_id": schedule_id, **entry_of(call, str(given["queue_name"]), timeout), **when}
        lost = (*call.lost, *changed, *lost_timeout(timeout), *_lost(given))
        return SourceEntry(schedule_id.removeprefix(f"{KIND}:"), entry, lost)

    def _when(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        interval, cron = given.get("interval"), given.get("cron")
        if bool(interval) == bool(cron):
            raise NotReadableError("it needs either an interval or a cron expression; RQ ignores it")
        if interval:
            told = (
                f"RQ fires it at each start of `rq cron`, and then every {interval} s; rqsched counts from the import."
            )
            return {"interval": interval}, [told]
        zone = self._reading.timezone or "UTC"
        *fields, last = str(cron).split()
        written = " ".join([last, *fields]) if len(fields) == 5 else str(cron)
        expression, now = unwrapped(written), SystemClock().now()
        require_same_times(expression, str(cron), _by_croniter, now, "RQ")
        changes = ClockChanges.of(expression, zone, now)
        is_same = expression == written
        when = {"cron": str(cron) if is_same else expression, "timezone": zone, **changes.keys(dst_gap="shift")}
        if len(fields) == 5:
            when["cron_seconds"] = "last" if is_same else "first"
        return when, [*changes.told_of("RQ")]


def _by_croniter(written: str) -> Following:
    """Read an expression as RQ does: with a new croniter for each time."""

    def following(at: datetime) -> datetime | None:
        try:
            found: datetime = croniter(written, at.replace(tzinfo=None)).get_next(datetime)
        except CroniterBadDateError:
            return None
        return found.replace(tzinfo=UTC)

    return following


def _require_of_module(function: object, path: str) -> None:
    if path.startswith(_FILE_MODULE):
        raise NotReadableError("its function is defined in the configuration file itself: move it into a module")
    if "." in getattr(function, "__qualname__", "."):
        raise NotReadableError(f"it calls {path}, but a workflow must be a function in a module: move it into one")


def _lost(given: Mapping[str, Any]) -> Iterator[str]:
    for name, sentence in _LOST.items():
        if given.get(name):
            yield sentence
    if given.get("result_ttl", DEFAULT_RESULT_TTL) != DEFAULT_RESULT_TTL:
        yield "Its result_ttl is lost: RQSCHED_RETENTION sets how long runs and their results are kept."
    if given.get("meta"):
        yield f"Its meta is lost ({', '.join(sorted(map(str, given['meta'])))}): pass it as arguments."
