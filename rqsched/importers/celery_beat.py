"""The source `celery-beat`: tables of django-celery-beat, entries of RedBeat, or `beat_schedule` of an application.

Tables and entries are data: neither Celery nor Django is imported. An application is code, so reading it runs it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from inspect import ismethod
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from redis import Redis
from redis.exceptions import WatchError

from rqsched.clock import Clock, SystemClock
from rqsched.errors import InvalidInputError
from rqsched.importers.celery_tasks import (
    KIND,
    Clocked,
    Crontab,
    Interval,
    PeriodicTask,
    Unknown,
    When,
    celery_crontab,
)
from rqsched.importers.cron_fields import not_compared
from rqsched.importers.foreign_tables import CHANGES, PERIODIC_TASKS, ForeignDatabase, aware
from rqsched.importers.source import Reading, SourceEntry, is_redis, until_quiet
from rqsched.kernel.decide.chunks import chunks
from rqsched.kernel.transport import redis_keys
from rqsched.kernel.transport.client import connect
from rqsched.workflows import import_failure

PREFIX = "redbeat:"
"""The default prefix of RedBeat's keys. An application may set another prefix by redbeat_key_prefix."""
_CHUNK = 500
_OPTIONS = ("queue", "exchange", "routing_key", "priority")
_BOUND = "Its task is bound (bind=True): in rqsched its self.request is empty, and self.retry() raises."
_NO_ZONE = (
    "Celery reads crontabs in its setting timezone, which is not stored with them. They are imported in UTC, unless "
    "--timezone names that zone."
)


def open_source(address: str, reading: Reading) -> DjangoCeleryBeat | RedBeat | CeleryApplication:
    """Open the database of django-celery-beat, the Redis of RedBeat or a Celery application.

    The form of the address decides which of these is opened. The URL of a Redis may end in `#` and the value of
    redbeat_key_prefix. Raises InvalidInputError or ConfigError for an address that is not valid, and for an application
    that is not trusted.
    """
    if is_redis(address):
        url, _, prefix = address.partition("#")
        return RedBeat(connect(url), reading, prefix=prefix or PREFIX)
    if "://" in address:
        return DjangoCeleryBeat(address, reading)
    return CeleryApplication(address, reading)


class DjangoCeleryBeat:
    """The tables of django-celery-beat in one database."""

    kind = KIND
    cannot_disable = None

    def __init__(self, url: str, reading: Reading, clock: Clock | None = None) -> None:
        self._clock, self._timezone = clock or SystemClock(), reading.timezone or "UTC"
        self._database = ForeignDatabase(url, (PERIODIC_TASKS, CHANGES, *_TIMINGS))
        self.notes: Sequence[str] = ()
        """The notes that hold for each of its entries."""

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def entries(self) -> list[SourceEntry]:
        """Read every periodic task, in the order of creation."""
        now, rows = self._clock.now(), self._database.rows()
        self.notes = () if celery_crontab() else (not_compared("Celery", "Celery"),)
        timings = {kind: {row["id"]: read(row) for row in rows[table]} for table, (kind, read) in _TIMINGS.items()}
        tasks = (_task_of_row(row, timings) for row in rows[PERIODIC_TASKS])
        return [task.becomes(now, self._timezone) for task in tasks]

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Disable the tasks and notify a running beat, in one transaction.

        Raises ConflictError if a running beat enables them again and again.
        """
        names = [entry.source_id for entry in entries]
        count = until_quiet(lambda: self._database.disable_tasks(names, self._clock.now()))
        return f"Disabled {count} periodic tasks; 'Enable selected tasks' in Django's admin enables them again."


def _interval_of_row(row: Mapping[str, Any]) -> When:
    try:
        return Interval(timedelta(**{row["period"]: row["every"]}))
    except (TypeError, OverflowError):
        return Unknown(f"it has an interval of {row['every']} {row['period']}")


def _crontab_of_row(row: Mapping[str, Any]) -> When:
    return Crontab.of(lambda name: row[name].replace(" ", ""), row.get("timezone"))


_TIMINGS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], When]]] = {
    "django_celery_beat_intervalschedule": ("interval", _interval_of_row),
    "django_celery_beat_crontabschedule": ("crontab", _crontab_of_row),
    "django_celery_beat_clockedschedule": ("clocked", lambda row: Clocked(aware(row["clocked_time"]))),
    "django_celery_beat_solarschedule": (
        "solar",
        lambda row: Unknown(f"it follows the sun ({row['event']}), which no schedule can do"),
    ),
}
"""For each table of timings: the column of a task that refers to a row (without `_id`), and the reader of the row."""


def _task_of_row(row: Mapping[str, Any], timings: Mapping[str, Mapping[int, When]]) -> PeriodicTask:
    named = [timings[kind][row[f"{kind}_id"]] for kind in timings if row.get(f"{kind}_id") in timings[kind]]
    options = {name: row.get(name) for name in _OPTIONS}
    seconds = row.get("expire_seconds")
    options |= {"headers": _decoded(row.get("headers") or "{}"), "expires": seconds and f"{seconds} s"}
    start_at, last_run_at, end_at, changed_at = (
        row[name] and aware(row[name]) for name in ("start_time", "last_run_at", "expires", "date_changed")
    )
    return PeriodicTask(
        name=row["name"],
        task=row["task"],
        when=named[0] if named else Unknown("it has no schedule"),
        args=_decoded(row["args"] or "[]"),
        kwargs=_decoded(row["kwargs"] or "{}"),
        options=options,
        is_enabled=bool(row["enabled"]),
        # If a task never ran, beat counts from its start. If it has no start, beat counts from its last change.
        last_run_at=last_run_at or (None if start_at else changed_at),
        start_at=start_at,
        end_at=end_at,
        is_one_off=bool(row["one_off"]),
        run_count=row["total_run_count"],
        description=row["description"],
    )


def _decoded(text: str | bytes) -> Any:
    """Decode JSON text; return None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class RedBeat:
    """The entries of RedBeat in one Redis.

    A running beat writes the last run of an entry, but never its definition. Therefore `enabled` stays false if an
    import sets it to false.
    """

    kind = KIND
    cannot_disable = None

    def __init__(self, redis: Redis, reading: Reading, clock: Clock | None = None, *, prefix: str = PREFIX) -> None:
        self._redis, self._prefix = redis, prefix
        self._clock, self._timezone = clock or SystemClock(), reading.timezone
        self._backup = redis_keys.disabled_entries(f"{KIND}:{prefix}")
        self.notes: Sequence[str] = ()
        """The notes that hold for each of its entries."""

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def entries(self) -> list[SourceEntry]:
        """Read every entry of beat, in the order of names."""
        now, kept = self._clock.now(), [*self._read()]
        zones = {zone for one in kept if (zone := one.zone) is not None}
        zone = self._timezone or (zones.pop() if len(zones) == 1 else None)
        is_assumed = zone is None and any(isinstance(one.timing, Crontab) for one in kept)
        compared = () if celery_crontab() else (not_compared("Celery", "RedBeat"),)
        self.notes = (_NO_ZONE, *compared) if is_assumed else compared
        statics = {_text(name) for name in self._redis.smembers(f"{self._prefix}:statics")}
        taken = {_text(key).removeprefix(self._prefix) for key in self._redis.hkeys(self._backup)}
        found = [one.becomes(now, zone or "UTC", statics) for one in kept]
        return [replace(one, is_taken=not one.enabled and one.source_id in taken) for one in found]

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Set `enabled` of each definition to false. A hash stores the previous definitions, by the keys of entries."""
        count = sum(self._disable(self._prefix + entry.source_id) for entry in entries)
        return f"Disabled {count} entries of RedBeat; the hash {self._backup} has their previous definitions."

    def _read(self) -> Iterator[_Kept]:
        kept = cast("list[bytes]", self._redis.zrange(f"{self._prefix}:schedule", 0, -1))
        for chunk in chunks(sorted(map(_text, kept)), _CHUNK):
            with self._redis.pipeline(transaction=False) as pipe:
                for key in chunk:
                    pipe.hmget(key, ["definition", "meta"])
                found = pipe.execute(raise_on_error=False)
            for key, fields in zip(chunk, found, strict=True):
                # For a key of another type, the pipeline returns an error instead of a list.
                definition, meta = fields if isinstance(fields, list) else (b"", None)
                if definition is not None:  # beat ignores a key without a definition
                    yield _Kept(key.removeprefix(self._prefix), _decoded(definition), _decoded(meta or "{}"))

    def _disable(self, key: str) -> bool:
        with self._redis.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(key)
                    kept = pipe.hget(key, "definition")
                    definition = _decoded(kept or "")
                    if not isinstance(definition, dict) or definition.get("enabled") is False:
                        return False
                    pipe.multi()
                    pipe.hset(self._backup, key, kept)
                    pipe.hset(key, "definition", json.dumps({**definition, "enabled": False}))
                    pipe.execute()
                except WatchError:  # beat wrote a last run meanwhile
                    continue
                return True


class _Kept(NamedTuple):
    """An entry of RedBeat. Its values are decoded from JSON; a value that is not JSON is None."""

    name: str
    definition: Any
    meta: Any

    @property
    def last_run_at(self) -> datetime | None:
        return _instant_of(self.meta.get("last_run_at")) if isinstance(self.meta, dict) else None

    @property
    def zone(self) -> str | None:
        """The zone of the stored last run, which is Celery's zone; None if the entry never ran."""
        tzinfo = self.last_run_at.tzinfo if self.last_run_at else None
        return getattr(tzinfo, "key", "UTC" if tzinfo is UTC else None)

    @property
    def timing(self) -> When:
        schedule = self.definition.get("schedule") if isinstance(self.definition, dict) else None
        if not isinstance(schedule, dict):
            return Unknown("its schedule is not as RedBeat writes it")
        kind = schedule.get("__type__")
        if kind == "crontab":
            return Crontab.of(lambda name: schedule.get(name, "*"), None)
        if kind != "interval":
            return Unknown(f"its schedule is a {kind}: use a cron or an interval instead")
        try:
            return Interval(timedelta(seconds=schedule["every"]), bool(schedule.get("relative")))
        except (KeyError, TypeError, ValueError, OverflowError):
            return Unknown("its schedule is not as RedBeat writes it")

    def becomes(self, now: datetime, timezone: str, statics: set[str]) -> SourceEntry:
        kept = self.definition
        if not isinstance(kept, dict) or not isinstance(kept.get("task"), str):
            return SourceEntry(self.name, None, ("It is not readable: RedBeat writes entries in another form.",))
        declared = "It is declared in beat_schedule, so a restart of beat enables it again: remove it from there."
        task = PeriodicTask(
            name=self.name,
            task=kept["task"],
            when=self.timing,
            args=kept.get("args") or [],
            kwargs=kept.get("kwargs") or {},
            options=kept["options"] if isinstance(kept.get("options"), dict) else {},
            is_enabled=kept.get("enabled") is not False,
            last_run_at=self.last_run_at,
            remarks=(declared,) if self.name in statics else (),
        )
        return task.becomes(now, timezone)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _instant_of(kept: Any) -> datetime | None:
    """Read an instant in the form that RedBeat writes; None for anything else."""
    if not isinstance(kept, dict) or kept.get("__type__") != "datetime":
        return None
    zone = kept.get("timezone", "UTC")
    parts = {name: value for name, value in kept.items() if name not in {"__type__", "timezone"}}
    try:
        if isinstance(zone, str):
            return datetime(**parts, tzinfo=ZoneInfo(zone))
        return datetime(**parts, tzinfo=UTC) - timedelta(seconds=zone)
    except (TypeError, ValueError, OverflowError, OSError, ZoneInfoNotFoundError):
        return None


class CeleryApplication:
    """The `beat_schedule` of a Celery application. To read it, the application and all its modules are imported."""

    kind = KIND
    cannot_disable = (
        "the schedule is in the application's code: stop beat, run this with --source-is-stopped, and remove "
        "beat_schedule from it before beat starts again"
    )

    def __init__(self, address: str, reading: Reading, clock: Clock | None = None) -> None:
        if not re.fullmatch(r"[\w.]+:\w+", address):
            raise InvalidInputError(
                "SOURCE", "is neither the URL of a database or Redis nor the place of a Celery application, module:name"
            )
        if not reading.is_trusted:
            raise InvalidInputError("--trust-source", f"is missing: {address} is code, and reading it runs it")
        self._application = _imported(address)
        self._clock, self._timezone = clock or SystemClock(), reading.timezone
        self.notes: Sequence[str] = ("The last runs of beat are not read, so intervals count from the import.",)
        """The notes that hold for each of its entries."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def entries(self) -> list[SourceEntry]:
        """Read every entry of `beat_schedule`, in the order of names."""
        now, schedule = self._clock.now(), self._application.conf.beat_schedule
        zone = self._timezone or str(getattr(self._application.timezone, "key", "UTC"))
        return [self._with_function(_declared_entry(name, schedule[name], now, zone)) for name in sorted(schedule)]

    def _with_function(self, one: SourceEntry) -> SourceEntry:
        """Return the entry with the dotted path of its task's function. This path may differ from the task's name."""
        task = None if one.entry is None else self._application.tasks.get(one.entry["workflow"])
        if one.entry is None or task is None:
            return one
        lost = (*one.lost, _BOUND) if ismethod(task.run) else one.lost
        return replace(one, lost=lost, function=_function_of(task))

    def disable(self, entries: Sequence[SourceEntry]) -> str:
        """Raise InvalidInputError, because an import does not change code."""
        del entries
        raise InvalidInputError("--disable-source", self.cannot_disable)


def _imported(address: str) -> Any:
    module, _, name = address.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError("SOURCE", f"cannot import {address}: {import_failure(error)}") from error
    if not hasattr(getattr(found, "conf", None), "beat_schedule"):
        raise InvalidInputError("SOURCE", f"{address} is a {type(found).__name__}, not a Celery application")
    try:
        found.loader.import_default_modules()  # a worker of Celery loads its tasks in the same way
    except Exception as error:  # a user's module may raise anything
        raise InvalidInputError("SOURCE", f"cannot import the tasks of {address}: {import_failure(error)}") from error
    return found


def _function_of(task: Any) -> str | None:
    """Return the dotted path by which a worker finds a task's function; None if it has none, such as a task class."""
    function = getattr(task, "__wrapped__", None)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", ".")
    if module in {None, "__main__"} or "." in name:
        return None
    found = getattr(sys.modules.get(module), name, None)
    # The path must lead to the task or to its plain function. A bound task's function cannot run without the task.
    is_there = getattr(found, "name", None) == task.name or (found is function and not ismethod(task.run))
    return f"{module}.{name}" if is_there else None


def _declared_entry(name: str, declared: Any, now: datetime, zone: str) -> SourceEntry:
    try:
        task = PeriodicTask(
            name=name,
            task=declared["task"],
            when=_declared_timing(declared["schedule"], bool(declared.get("relative"))),
            args=declared.get("args") or [],
            kwargs=declared.get("kwargs") or {},
            options=declared.get("options") or {},
            is_enabled=True,
        )
        return task.becomes(now, zone)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"It is not readable: Celery refuses it too ({type(error).__name__}: {error})."
        return SourceEntry(name, None, (reason,))


def _counts_otherwise(schedule: Any) -> bool:
    """Return whether a class of the application, instead of Celery's own class, computes when a schedule is due."""
    own = next((one for one in type(schedule).__mro__ if one.__module__ == "celery.schedules"), None)
    asked = ("is_due", "remaining_estimate", "remaining_delta")
    return any(getattr(type(schedule), name, None) is not getattr(own, name, None) for name in asked if own)


def _declared_timing(schedule: Any, is_rounded: bool) -> When:
    """Read a schedule object of Celery by its attributes. The fields of a crontab are sets of numbers."""
    if isinstance(schedule, int | float):
        return Interval(timedelta(seconds=schedule), is_rounded)
    if isinstance(schedule, timedelta):
        return Interval(schedule, is_rounded)
    if _counts_otherwise(schedule):
        return Unknown(
            f"its schedule is a {type(schedule).__name__}, and code of the application computes when it is due"
        )
    if hasattr(schedule, "day_of_month"):
        return Crontab.of(lambda name: sorted(getattr(schedule, name)), None)
    if hasattr(schedule, "run_every"):
        return Interval(schedule.run_every, is_rounded or bool(schedule.relative))
    return Unknown(f"its schedule is a {type(schedule).__name__}: use a cron or an interval instead")
