"""The jobs of rq-scheduler become entries: their fields, losses and removal."""

from __future__ import annotations

import json
import pickle
import sys
import time
import zlib
from datetime import UTC, date, datetime, timedelta
from types import ModuleType
from typing import Any

import crontab  # type: ignore[import-untyped]
import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from rqsched.errors import ConflictError, InvalidInputError
from rqsched.importers import rq_scheduler as module
from rqsched.importers.handing_over import labelled
from rqsched.importers.rq_scheduler import LOCK, SCHEDULED, RqScheduler
from rqsched.importers.source import Reading, SourceEntry, distinct
from rqsched.kernel.transport import redis_keys
from rqsched.when.members import Cron
from tests.importers.test_celery_times import timing_in

BACKUP = redis_keys.disabled_entries("rq-scheduler")
AT = datetime(2099, 1, 15, 12, tzinfo=UTC)
FUNCTION = "app.jobs.report"


class Model:
    """An argument that an application can pass and JSON cannot express."""

    def report(self) -> None: ...


def only(source: RqScheduler) -> SourceEntry:
    (one,) = source.entries()
    return one


def entry(source: RqScheduler) -> dict[str, Any]:
    found = only(source).entry
    assert found is not None, only(source).lost
    return dict(found)


def why_not(source: RqScheduler) -> str:
    one = only(source)
    assert one.entry is None
    return " ".join(one.lost)


def test_an_interval_counts_on_from_its_next_time(theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, args=["eu"], kwargs={"a": 1}, interval=3600, repeat=5, timeout=77, id="hourly")
    assert entry(source) == {
        "schedule_id": "rq-scheduler:hourly",
        "workflow": FUNCTION,
        "queue": "low",
        "args": ["eu"],
        "kwargs": {"a": 1},
        "timeout": 77,
        "overlap": "allow_all",
        "retry": {"max_retries": 0},
        "interval": 3600,
        "anchor": "2099-01-15T12:00:00Z",
        "start_at": "2099-01-15T12:00:00Z",
        "max_runs": 5,
    }
    one = only(source)
    assert (one.enabled, one.is_taken, one.next_at) == (True, False, AT)
    assert [sentence.split(".")[0] for sentence in one.lost] == ["Its interval counts from its next time"]


@pytest.mark.parametrize("timing", [{"interval": 86_400}, {"cron_string": "0 12 * * *"}], ids=["interval", "cron"])
def test_a_daily_job_that_is_first_due_in_ten_days_waits_until_then(
    timing: dict[str, Any], theirs: Any, redis: Redis, source: RqScheduler
) -> None:
    job = theirs.schedule(AT, FUNCTION, id="x", timeout=60)
    job.meta = timing
    job.save()
    in_ten_days = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=10)
    redis.zadd(SCHEDULED, {"x": in_ten_days.timestamp()})
    assert timing_in(entry(source)).next_after(datetime.now(UTC)) == in_ten_days


def test_a_job_whose_time_has_passed_has_no_start(theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(datetime(2020, 1, 1, tzinfo=UTC), FUNCTION, interval=60, id="late", timeout=60)
    assert "start_at" not in entry(source)


def test_a_cron_expression_is_read_in_the_zone_of_its_host(theirs: Any, redis: Redis) -> None:
    theirs.cron("0 9 * * mon-fri", FUNCTION, id="nightly", queue_name="high", timeout=60)
    utc = RqScheduler(redis, Reading(is_trusted=True))
    assert [entry(utc)[name] for name in ("cron", "timezone", "queue")] == ["0 9 * * mon-fri", "UTC", "high"]
    assert ["zone of its host" in note for note in utc.notes] == [True]
    berlin = RqScheduler(redis, Reading(True, "Europe/Berlin"))
    assert (entry(berlin)["timezone"], entry(berlin)["dst_gap"]) == ("Europe/Berlin", "shift")
    assert "dst_gap" not in entry(utc)
    assert berlin.notes == []


def test_a_zone_that_does_not_fit_the_next_time_is_said(theirs: Any, redis: Redis) -> None:
    theirs.cron("0 9 * * *", FUNCTION, id="nightly", timeout=60)
    redis.zadd(SCHEDULED, {"nightly": datetime(2099, 7, 1, 7, tzinfo=UTC).timestamp()})
    (sentence,) = only(RqScheduler(redis, Reading(is_trusted=True))).lost
    assert sentence == (
        "rq-scheduler fires it next at 2099-07-01T07:00:00Z, but the expression gives 2099-07-01T09:00:00Z in UTC: "
        "name the zone of rqscheduler's host with --timezone."
    )
    assert only(RqScheduler(redis, Reading(True, "Europe/Berlin"))).lost == ()


@pytest.mark.parametrize("is_local", [True, False])
def test_the_zone_of_the_host_is_what_rq_scheduler_reads_expressions_in(
    is_local: bool, theirs: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        theirs.cron("0 9 * * *", FUNCTION, id="nightly", timeout=60, use_local_timezone=is_local)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert only(RqScheduler(redis, Reading(True, "Pacific/Auckland"))).lost == ()
    assert "--timezone" in only(RqScheduler(redis, Reading(is_trusted=True))).lost[0]


@pytest.mark.parametrize(
    "library", [None, ModuleType("crontab")], ids=["no package", "the package python-crontab, of the same name"]
)
def test_what_was_not_compared_is_said(
    library: ModuleType | None, theirs: Any, source: RqScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.cron("0 9 * * *", FUNCTION, id="x", timeout=60)
    if library is not None:
        monkeypatch.setattr(library, "CronTab", type("CronTab", (), {}), raising=False)
    monkeypatch.setitem(sys.modules, "crontab", library)
    module.crontab_expressions.cache_clear()
    try:
        assert entry(source)["cron"] == "0 9 * * *"
    finally:
        module.crontab_expressions.cache_clear()
    assert "were compared only with the next times that rq-scheduler stores" in source.notes[0]


SAME = [
    *("*/7 3-5 * 1,6 *", "0 0 L * *", "0 0 ? * L5", "5/15 * * * *", "0 12 ? * sun", "0 0 31 * *", "59 23 29 2 *"),
    *("@weekly", "@yearly", "0 0 * * 7", "0 0 * * 5-7", "10-50/20 * * * *", "0 0 1,L * *", "30 0 9 * * 1 *"),
    *("0 9 * * mon-fri *", "0 0 * dec thu", "0 0 1-7 * *", "0 22 * * 0-4", "0 9 * * sat-sun", "0 9 * * mon-sun"),
]


@pytest.mark.parametrize("written", SAME)
def test_an_expression_that_is_imported_means_the_same_here(written: str, theirs: Any, source: RqScheduler) -> None:
    theirs.cron(written, FUNCTION, id="x", timeout=60)
    found = entry(source)
    ours, at = Cron(found["cron"], seconds="first"), datetime(2026, 1, 1, tzinfo=UTC)
    tab = crontab.CronTab(written)
    for _ in range(15):
        following = tab.next(now=at, return_datetime=True)
        assert ours.next_after(at) == following
        at = following


def test_one_time_is_an_instant(theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, args=[7], id="once", at_front=True, timeout=60)
    found = entry(source)
    assert (found["once"], found["args"], found["priority"]) == ("2099-01-15T12:00:00Z", [7], 1)
    assert only(source).lost == ()


@pytest.mark.parametrize(
    ("written", "expression", "seconds"),
    [
        ("*/5 * * * *", "*/5 * * * *", None),
        ("0 9 * * 1 *", "0 9 * * 1", None),
        ("30 0 9 * * 1 *", "30 0 9 * * 1", "first"),
        ("@daily", "@daily", None),
        ("0 0 ? * L5", "0 0 ? * L5", None),
    ],
)
def test_forms_of_expressions_are_ours(
    written: str, expression: str, seconds: str | None, theirs: Any, source: RqScheduler
) -> None:
    theirs.cron(written, FUNCTION, id="x", timeout=60)
    found = entry(source)
    assert (found["cron"], found.get("cron_seconds"), only(source).lost) == (expression, seconds, ())


@pytest.mark.parametrize(
    ("written", "reason"), [("0 9 13 * fri", "match both day fields"), ("0 9 1 1 * 2030", "names a year")]
)
def test_an_expression_that_means_what_ours_cannot_is_not_imported(
    written: str, reason: str, theirs: Any, source: RqScheduler
) -> None:
    theirs.cron(written, FUNCTION, id="x")
    assert reason in why_not(source)


def test_what_a_schedule_has_not_is_said(theirs: Any, source: RqScheduler) -> None:
    theirs.enqueue_at(
        AT, FUNCTION, (1, (2,)), job_id="x", job_ttl=60, job_result_ttl=9, meta={"who": 1}, on_failure=print
    )
    assert [sentence.partition(":")[0] for sentence in only(source).lost] == [
        "A tuple among its arguments becomes a list.",
        "It has no timeout of its own",
        "Its ttl is lost",
        "Its on_failure callback is lost",
        "Its result_ttl is lost",
        "Its meta is lost (who)",
    ]
    assert entry(source)["args"] == [[1, [2]]]


@pytest.mark.parametrize("timeout", [-1, 31 * 86_400])
def test_a_timeout_without_end_becomes_the_longest(timeout: int, theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, timeout=timeout, id="x")
    assert entry(source)["timeout"] == 30 * 86_400
    assert only(source).lost == ("It has no timeout; in rqsched it may take at most 30 days.",)


def test_a_description_of_its_own_is_kept(theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, id="x", description="the report of the north")
    assert entry(source)["description"] == "the report of the north"
    theirs.schedule(AT, FUNCTION, id="x")
    assert "description" not in entry(source)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (date(2026, 1, 1), "an argument holds a date, which is not JSON"),
        ({1: 2}, "an argument holds a dict with a key that is an int, which is not JSON"),
        (b"x", "an argument holds a bytes"),
        (Model(), f"an argument holds a {__name__}.Model, which is not JSON"),
    ],
    ids=["a date", "a key", "bytes", "an object"],
)
def test_an_argument_that_is_not_json_is_named_and_not_imported(
    argument: object, reason: str, theirs: Any, source: RqScheduler
) -> None:
    theirs.enqueue_at(AT, FUNCTION, argument)
    assert reason in why_not(source)


def test_a_method_is_not_imported(theirs: Any, source: RqScheduler) -> None:
    theirs.enqueue_at(AT, Model().report)
    assert "Model" in why_not(source)


@pytest.mark.parametrize("function", ["print", "not a path", ".x", "a..b"])
def test_what_is_not_a_function_in_a_module_is_not_imported(function: str, redis: Redis, source: RqScheduler) -> None:
    put(redis, pickle.dumps((function, None, (), {})))
    assert "a function in a module" in why_not(source)


def test_pickles_of_a_source_that_is_not_trusted_are_refused(theirs: Any, redis: Redis) -> None:
    source = RqScheduler(redis, Reading())
    assert source.entries() == []
    theirs.schedule(AT, FUNCTION, id="x")
    with pytest.raises(InvalidInputError, match="--trust-source: is missing"):
        source.entries()


def test_jobs_of_the_serializer_of_json_are_read_without_trust(redis: Redis) -> None:
    job = Job.create(FUNCTION, args=["eu"], id="x", connection=redis, serializer=JSONSerializer, timeout=9, origin="q")
    job.meta["interval"] = 60
    job.save()
    redis.zadd(SCHEDULED, {"x": AT.timestamp()})
    found = entry(RqScheduler(redis, Reading()))
    assert (found["args"], found["interval"]) == (["eu"], 60)


def put(redis: Redis, data: bytes, score: float = 4_000_000_000.0, **fields: bytes) -> None:
    """A job as somebody else may have written it."""
    found: dict[Any, Any] = {"data": data, "origin": b"low", **fields}
    redis.hset("rq:job:x", mapping=found)
    redis.zadd(SCHEDULED, {"x": score})


WHOLE = pickle.dumps((FUNCTION, None, (), {}))


@pytest.mark.parametrize(
    "job",
    [
        {"data": b""},
        {"data": b"\x80"},
        {"data": b"[1"},
        {"data": b"[" * 100_000},
        {"data": zlib.compress(bytes(50_000_000))},
        {"data": pickle.dumps(1)},
        {"data": pickle.dumps((FUNCTION, None, 1, 2))},
        {"data": json.dumps([FUNCTION, None, [], {}, 1]).encode()},
        {"data": WHOLE, "timeout": b"soon"},
        {"data": WHOLE, "origin": b"\xff"},
        {"data": WHOLE, "meta": b"\x80"},
        {"data": WHOLE, "meta": pickle.dumps([1])},
        {"data": WHOLE, "meta": pickle.dumps({"interval": "soon"})},
        {"data": WHOLE, "meta": pickle.dumps({"interval": 60, "repeat": [1]})},
        {"data": WHOLE, "meta": pickle.dumps({"cron_string": 7})},
        {"data": WHOLE, "score": 1e300},
        {"data": WHOLE, "score": float("inf")},
    ],
    ids=lambda job: repr(job)[:60],
)
def test_a_job_that_cannot_be_read_is_said_and_hides_no_other(
    job: dict[str, Any], theirs: Any, redis: Redis, source: RqScheduler
) -> None:
    put(redis, **job)
    theirs.schedule(AT, FUNCTION, id="y")
    found = {one.source_id: one for one in source.entries()}
    assert found["y"].entry is not None
    if found["x"].entry is not None:  # values that the reader of entries refuses
        assert job["data"] == WHOLE
    else:
        assert found["x"].lost


def test_a_job_whose_hash_is_gone_or_is_none_is_said(theirs: Any, redis: Redis, source: RqScheduler) -> None:
    redis.zadd(SCHEDULED, {"gone": 4_000_000_000})
    redis.set("rq:job:text", "x")
    redis.zadd(SCHEDULED, {"text": 4_000_000_000})
    assert {one.lost for one in source.entries()} == {
        ("Its job is not in Redis any more; rq-scheduler will drop it too.",)
    }


def test_a_drawn_id_does_not_count_for_it_is_drawn_anew(theirs: Any, redis: Redis, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, args=["eu"], interval=60)
    before = entry(source)["schedule_id"]
    assert before.startswith(f"rq-scheduler:{FUNCTION}-")
    redis.delete(SCHEDULED)
    theirs.schedule(AT + timedelta(hours=1), FUNCTION, args=["eu"], interval=60, repeat=7)
    assert entry(source)["schedule_id"] == before
    redis.delete(SCHEDULED)
    theirs.schedule(AT, FUNCTION, args=["us"], interval=60)
    assert entry(source)["schedule_id"] != before


def test_two_that_do_the_same_are_numbered_and_said(theirs: Any, source: RqScheduler) -> None:
    theirs.schedule(AT, FUNCTION, interval=60)
    theirs.schedule(AT, FUNCTION, interval=60)
    first, second = distinct(source.entries())
    assert second.entry is not None
    assert first.entry is not None
    assert second.entry["schedule_id"] == f"{first.entry['schedule_id']}-2"
    assert "does the same" in second.lost[-1]


def test_ids_of_any_text_become_ids_that_differ(redis: Redis, source: RqScheduler) -> None:
    names = ["a b", "a/b", "a  b", "\u00e4", "-x", "x" * 400, "x" * 401]
    for name in names:  # as releases of RQ before 2.4 allow them
        redis.hset(f"rq:job:{name}", mapping={"data": WHOLE})
        redis.zadd(SCHEDULED, {name: 4_000_000_000})
    ids = {one.entry["schedule_id"] for one in source.entries() if one.entry}
    assert len(ids) == len(names)
    assert max(map(len, ids)) <= 255


def test_what_is_disabled_is_in_a_copy_that_one_command_puts_back(
    theirs: Any, redis: Redis, source: RqScheduler
) -> None:
    theirs.schedule(AT, FUNCTION, id="a", interval=60)
    theirs.schedule(AT, FUNCTION, id="b", interval=60)
    before = redis.zrange(SCHEDULED, 0, -1, withscores=True)
    a, b = sorted(source.entries(), key=lambda one: one.source_id)
    said = source.disable([a])
    assert f"ZUNIONSTORE {SCHEDULED} 2 {SCHEDULED} {BACKUP}" in said
    assert [job.id for job in theirs.get_jobs()] == ["b"]
    assert {one.source_id: (one.enabled, one.is_taken) for one in source.entries()} == {
        "a": (False, True),
        "b": (True, False),
    }
    assert source.disable([a, b]).startswith("Moved 1 job from")  # the first is gone already
    assert redis.exists(SCHEDULED, LOCK) == 0
    redis.zunionstore(SCHEDULED, [SCHEDULED, BACKUP])
    assert redis.zrange(SCHEDULED, 0, -1, withscores=True) == before


def test_a_job_that_has_fired_for_the_last_time_is_not_disabled(theirs: Any, redis: Redis, source: RqScheduler) -> None:
    theirs.enqueue_at(datetime(2020, 1, 1, tzinfo=UTC), FUNCTION, job_id="late")
    found = source.entries()
    theirs.enqueue_jobs()
    source.disable(found)
    assert redis.exists(BACKUP) == 0
    assert source.entries() == []


def test_nothing_is_moved_while_an_rqscheduler_enqueues(
    theirs: Any, redis: Redis, source: RqScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0)
    theirs.schedule(AT, FUNCTION, id="a", interval=60)
    assert theirs.acquire_lock()
    with pytest.raises(ConflictError, match="Stop rqscheduler"):
        source.disable(source.entries())
    assert redis.zcard(SCHEDULED) == 1
    theirs.remove_lock()
    source.disable(source.entries())
    assert redis.zcard(SCHEDULED) == 0


def test_an_rqscheduler_that_runs_is_said(theirs: Any, source: RqScheduler) -> None:
    theirs.register_birth()
    source.entries()
    assert source.notes[0].startswith("1 rqscheduler processes run")
    theirs.register_death()
    source.entries()
    assert source.notes == []


def test_an_entry_has_the_label_of_where_it_came_from() -> None:
    assert labelled({"labels": {"team": "a"}}, "rq-scheduler")["labels"] == {
        "team": "a",
        "imported_from": "rq-scheduler",
    }


def test_a_function_that_looks_like_one_of_a_class_is_said(theirs: Any, source: RqScheduler) -> None:
    theirs.enqueue_at(AT, "app.jobs.Reports.daily", timeout=60)
    assert "looks like a class" in only(source).lost[0]
