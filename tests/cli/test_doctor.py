"""doctor: each fault is found, and what to do about it is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from redis import Redis
from rq import Queue, Worker

import rqsched
from rqsched import Every, RetryPolicy, Spec, embedded
from rqsched.api.schedule_handle import ScheduleHandle
from rqsched.kernel.chain.execution import claim_run
from rqsched.kernel.chain.reconcile.passes import recover
from rqsched.kernel.chain.settle import lose_run
from rqsched.kernel.decide.model import dump_spec
from rqsched.kernel.store.tables import schedules
from rqsched.kernel.transport import redis_keys, telemetry
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat, live_dispatchers
from rqsched.kernel.transport.transport import Arm, Transport, job_id_of
from rqsched.machines import MachineScheduler
from rqsched.workflows import registry
from tests.support.cli import HELLO, Cli
from tests.support.cli_machines import Ticket
from tests.support.decisions import HEAVY, MORNING
from tests.support.env import block, link_id
from tests.support.narrow import present
from tests.support.refusals import refusing
from tests.support.servers import ValkeyServer


def levels(cli: Cli, code: int) -> dict[str, str]:
    return {name: finding["level"] for name, finding in cli.findings(code).items()}


@pytest.fixture
def served(cli: Cli) -> Cli:
    """A database and a Redis with a dispatcher and an RQ worker that have shown themselves."""
    runtime = cli.scheduler.runtime
    recover(runtime)
    send_heartbeat(cli)
    queues = [Queue(name, connection=runtime.transport.redis) for name in ("high", "default")]
    Worker(queues, connection=runtime.transport.redis, name="doctor-test").register_birth()
    return cli


def send_heartbeat(cli: Cli) -> None:
    """Let the dispatcher show itself: a test whose decisions take long has to do so before each look."""
    runtime = cli.scheduler.runtime
    DispatcherHeartbeat(runtime.transport.redis, runtime.transport.control.name, runtime.now).send()


def test_without_problems_the_exit_code_is_0(served: Cli) -> None:
    served.scheduler.create("a", HELLO, Every("1h")).trigger()
    found = served.findings(0)
    assert {name for name, finding in found.items() if finding["level"] == "problem"} == set()
    assert set(found) == {
        *(
            "versions",
            "imports",
            "database",
            "encoding",
            "schema",
            "redis",
            "ownership",
            "clock",
            "eviction",
            "persistence",
        ),
        *(
            "connections",
            "memory",
            "writes",
            "publishing",
            "went back",
            "all-frozen",
            "frozen",
            "dispatchers",
            "waits",
            "environments",
            "workers",
            "runners",
            "foreign workers",
            "after",
            "blocked",
            "limits",
            "excluded",
            "calendars",
            "newer release",
            "late",
            "long",
            "dead",
            "failing",
            "links",
            "failed links",
            "frozen",
            "depth",
            "events",
            "quotas",
            "successes",
            "notifications",
        ),
    }
    assert found["dispatchers"]["detail"].endswith(f":{os.getpid()}")
    assert found["workers"]["detail"] == "high (1), default (1); RQ alone (1)"
    assert found["redis"]["detail"].endswith(" ms and takes writes"), (
        "one that is named by a URL is somebody else's to end"
    )


def test_workers_of_rqsched_are_counted_by_its_version(served: Cli) -> None:
    redis = served.scheduler.runtime.transport.redis
    (plain,) = Worker.all(connection=redis)
    telemetry.show_worker_version(redis, plain.key)
    assert served.findings(0)["workers"]["detail"] == f"high (1), default (1); rqsched {rqsched.__version__} (1)"


def test_workflow_of_the_settings_that_nobody_has_is_found(served: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_ON_FAILURE", "alart")
    finding = served.findings(0)["notifications"]
    assert (finding["level"], finding["detail"]) == (
        "warning",
        "RQSCHED_ON_FAILURE names 'alart', which no process has registered.",
    )


def test_every_finding_that_is_not_fine_says_what_to_do(cli: Cli) -> None:
    cli.past().create("a", HELLO, Every("30m"))
    found = cli.findings(1).values()
    assert {f["check"] for f in found if f["level"] == "problem"} == {"dispatchers", "late", "links"}
    assert all((finding["advice"] is None) == (finding["level"] == "ok") for finding in found)


def test_a_missing_dispatcher_is_a_problem_only_with_active_schedules(cli: Cli) -> None:
    assert levels(cli, 0)["dispatchers"] == "warning"
    cli.scheduler.create("a", HELLO, Every("1h"))
    assert levels(cli, 1)["dispatchers"] == "problem"


def show_dispatcher(cli: Cli, name: str, told: str) -> None:
    """Let a dispatcher of another machine tell of itself."""
    transport = cli.scheduler.runtime.transport
    transport.redis.sadd(redis_keys.dispatchers(transport.control.name), name)
    transport.redis.set(redis_keys.dispatcher(transport.control.name, name), f"2026-01-01T00:00:00Z {told}", ex=60)


@pytest.mark.parametrize(
    ("environments", "level", "detail"),
    [
        (["production"], "ok", "1 schedule limited to environments, one of which is here"),
        (["staging"], "ok", "do not fire here (RQSCHED_ENVIRONMENT: 'staging'): default/a (production)"),
        ([""], "warning", "are skipped by dispatchers (RQSCHED_ENVIRONMENT: none): default/a (production)"),
        (["production", "staging"], "warning",
         "are skipped by dispatchers (RQSCHED_ENVIRONMENT: 'production', 'staging'): default/a (production)"),
    ],
    ids=["the same", "another", "none", "some"],
)  # fmt: skip
def test_schedules_of_another_environment_are_found(cli: Cli, environments: list[str], level: str, detail: str) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"), environments=["production"])
    cli.scheduler.create("everywhere", HELLO, Every("1h"))
    for number, environment in enumerate(environments):
        show_dispatcher(cli, f"host:{number}", f"0.1.0 {environment}")
    found = cli.findings(0)["environments"]
    assert (found["level"], found["detail"]) == (level, detail)


def come_to_exclude(cli: Cli, schedule: ScheduleHandle, spec: Spec) -> None:
    """Give a stored schedule a spec that no operation accepts, without a next time, and make a pass."""
    values = {"spec": dump_spec(spec), "next_run_at": None, "due_at": None}
    change = sa.update(schedules).where(schedules.c.uid == schedule.uid).values(**values)
    cli.scheduler.runtime.database.transact(lambda connection: connection.execute(change))
    recover(cli.scheduler.runtime)


def test_schedule_of_which_everything_is_excluded_is_found_and_stays_active(served: Cli) -> None:
    """A schedule can only become so over time, because such a timing is refused."""
    served.scheduler.create("a", HELLO, "0 9 * * SAT", exclude="Sun")
    rest = served.scheduler.create("rest", HELLO, "0 9 * * SAT")
    assert served.findings(0)["excluded"]["level"] == "ok"
    come_to_exclude(served, rest, Spec("0 9 * * SAT", exclude="Sat"))

    found = served.findings(0)["excluded"]
    assert (found["level"], found["detail"]) == (
        "warning",
        "all occurrences of the next ten years are excluded: default/rest",
    )
    assert rest.refresh().status == "active"
    told = rest.why()
    assert (told.answer, told.text) == ("excluded", "All its occurrences of the next ten years are excluded.")


@pytest.mark.broad
def test_schedule_whose_next_time_takes_too_many_steps_is_found_and_kept_active(served: Cli) -> None:
    heavy = served.scheduler.create("heavy", HELLO, Spec(HEAVY, "Europe/Berlin"))
    come_to_exclude(served, heavy, Spec(HEAVY, "Europe/Berlin", exclude=MORNING))

    send_heartbeat(served)
    found = served.findings(0)["excluded"]
    assert (found["level"], found["detail"]) == (
        "warning",
        "the next time is not found in 100000 steps; each pass looks again, and a fire may be late: default/heavy",
    )
    assert heavy.refresh().status == "active"
    assert "not found in 100000 steps" in heavy.why().text

    rest = served.scheduler.create("rest", HELLO, "0 9 * * SAT")
    come_to_exclude(served, rest, Spec("0 9 * * SAT", exclude="Sat"))
    send_heartbeat(served)
    both = found["detail"] + "; all occurrences of the next ten years are excluded: default/rest"
    assert served.findings(0)["excluded"]["detail"] == both


def test_late_schedule_of_a_newer_release_is_found_shown_and_left_out_of_a_file(served: Cli) -> None:
    left = served.scheduler.create("left", HELLO, Every("1h"))
    past = datetime.now(UTC) - timedelta(hours=1)
    newer = {"spec": '{"cron_expressions":["0 9 * * *"],"moon":"full"}', "next_run_at": past, "due_at": past}
    assert served.findings(0)["newer release"]["level"] == "ok"
    change = sa.update(schedules).where(schedules.c.uid == left.uid).values(**newer)
    served.scheduler.runtime.database.transact(lambda connection: connection.execute(change))

    found = served.findings(1)["newer release"]
    assert (found["level"], found["detail"]) == (
        "warning", "late, and of a newer release, whose processes alone fire them: default/left",
    )  # fmt: skip
    told = "of a newer release (spec: unknown key 'moon')"
    assert told in served("list", "-o", "json").out
    assert told in served("describe", "left", "-o", "json").out
    assert "whose processes fire it" in served("why", "left").out
    assert "left is left out, because a file cannot hold: timing of a newer release" in served("export").err
    assert "Ask a process of the newer release" in served("update", "left", "--label", "a=b", code=4).err


def test_plain_rq_workers_on_the_control_queue_count_as_dispatchers(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"))
    redis = cli.scheduler.runtime.transport.redis
    Worker([Queue("rqsched", connection=redis)], connection=redis, name="plain").register_birth()
    assert levels(cli, 0)["dispatchers"] == "ok"


def test_runs_on_a_queue_without_worker_are_found(served: Cli) -> None:
    past = served.past()
    past.create("a", HELLO, Every("2h"), queue="deserted").trigger()
    finding = served.findings(1)["workers"]
    assert finding["detail"] == "No worker listens for 1 run on 'deserted'."
    assert finding["advice"] == "Start `rqsched worker deserted`, or cancel the runs that wait there."


def test_dead_links_are_found(served: Cli) -> None:
    served.scheduler.create("a", HELLO, Every("25s"))
    redis = served.scheduler.runtime.transport.redis
    redis.delete(served.scheduler.runtime.transport.scheduled_key)
    assert served.findings(1)["links"]["detail"] == "1 of 1 due soon are not live in Redis"
    served("recover", "--deep")
    assert levels(served, 0)["links"] == "ok"


def test_a_link_that_redis_holds_for_a_time_unknown_to_sql_is_dead(served: Cli) -> None:
    """As after a restored backup: SQL has gone back, and Redis has not."""
    schedule = served.scheduler.create("a", HELLO, Every("25s"))
    redis, key = served.scheduler.runtime.transport.redis, served.scheduler.runtime.transport.scheduled_key
    redis.zadd(key, {link_id(schedule): (datetime.now(UTC) + timedelta(days=38)).timestamp()})
    assert served.findings(1)["links"]["detail"] == "1 of 1 due soon are not live in Redis"
    served("recover")
    assert levels(served, 0)["links"] == "ok"


def test_a_link_that_is_overdue_is_not_just_said_to_be_live(served: Cli) -> None:
    served.past().create("a", HELLO, Every("30m"))
    served("recover")
    found = served.findings(1)
    assert found["late"]["detail"].startswith("1 schedule should have fired, and did not: default/a (due 20")
    assert found["links"]["detail"] == "1 due soon or late, all in Redis, where 1 late wait for a dispatcher"


def test_a_link_that_fires_between_the_two_reads_is_not_dead(served: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = served.scheduler.create("a", HELLO, Every("25s"))
    look = Transport.live_links

    def look_late(transport: Transport, arms: Sequence[Arm], *, now: datetime) -> list[bool]:
        monkeypatch.setattr(Transport, "live_links", look)
        schedule.pause()
        schedule.resume()
        transport.drop(str(arm.id) for arm in arms)
        return look(transport, arms, now=now)

    monkeypatch.setattr(Transport, "live_links", look_late)

    assert levels(served, 0)["links"] == "ok"
    assert Transport.live_links is look


def test_blocked_runs_are_found_with_which_worker_lacked_what(served: Cli) -> None:
    schedule = served.scheduler.create("a", HELLO, Every("1h"))
    run = block(served.scheduler.runtime, present(schedule.trigger().run))
    first, second = (served.findings(1)["blocked"] for _ in range(2))
    assert first == second
    assert first["detail"] == f"No worker has the code of 1 run yet ({run.blocked_reason})."
    assert "--status blocked" in first["advice"]
    run.cancel()
    assert served.findings(0)["blocked"]["detail"] == "no run waits for code"


def test_what_several_workers_lack_is_said_once_with_their_names(served: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = served.scheduler.runtime
    for schedule, host in (("a", "one"), ("b", "two")):
        monkeypatch.setattr("rqsched.kernel.chain.attempt.socket.gethostname", lambda host=host: host)
        block(runtime, present(served.scheduler.create(schedule, HELLO, Every("1h")).trigger().run))
    workers = f"one:{os.getpid()}, two:{os.getpid()}"
    detail = f"No worker has the code of 2 runs yet ({workers}: no module named 'billing')."
    assert served.findings(1)["blocked"]["detail"] == detail


def test_events_of_machines_that_are_declared_and_never_registered_are_named(served: Cli) -> None:
    close, expire = (Ticket.__rqsched_machine__.workflow(event) for event in ("CLOSE", "EXPIRE"))  # type: ignore[attr-defined]
    finding = served.findings(0)["events"]
    assert finding["level"] == "warning"
    assert finding["detail"].startswith("declared and never registered: ")
    assert {close, expire} <= set(finding["detail"].partition(": ")[2].split(", "))
    assert "MachineScheduler.register" in finding["advice"]

    served.scheduler.create("by-hand", close, Every("1h"))
    MachineScheduler.register(Ticket, "EXPIRE").every("1h")
    try:
        assert not {close, expire} & set(served.findings(0)["events"]["detail"].partition(": ")[2].split(", "))
    finally:
        registry.withdraw(expire)


def test_dead_schedules_are_named(served: Cli) -> None:
    retry = RetryPolicy(max_retries=0, then="dead")
    schedule = served.scheduler.create("a", HELLO, Every("1h"), retry=retry)
    schedule.trigger()
    run = schedule.runs().items[0]
    assert claim_run(served.scheduler.runtime, job_id_of(run.state)) is not None
    lose_run(served.scheduler.runtime, job_id_of(run.state), "its work horse died")
    finding = served.findings(0)["dead"]
    assert (finding["level"], finding["detail"].endswith(": default/a.")) == ("warning", True)
    assert "rqsched restart" in finding["advice"]


def test_the_embedded_valkey_is_named_with_what_ends_it(
    cli: Cli, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded Valkey outlives the process that started it, and no command ends it."""
    for name in ("RQSCHED_DATABASE_URL", "RQSCHED_REDIS_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("RQSCHED_DATA_DIR", str(data_dir))
    pid = embedded.attach(data_dir).pid
    told = cli.findings(1)["redis"]["detail"]
    assert told.endswith(f"; it is the embedded one of {data_dir}, and runs until `kill {pid}`, which keeps its data")


def test_a_redis_of_another_database_is_found(served: Cli) -> None:
    transport = served.scheduler.runtime.transport
    transport.redis.set(transport.database_id_key, "somebody else")
    finding = served.findings(1)["ownership"]
    assert "belongs to another database" in finding["detail"]


def test_a_database_that_redis_does_not_belong_to_is_found_with_the_remedy_and_twice_the_same(
    served: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owner = served.scheduler.runtime.ownership.database_id()
    for name in ("wrong.db", "empty.db"):
        url = f"sqlite:///{tmp_path / name}"
        monkeypatch.setenv("RQSCHED_DATABASE_URL", url)
        if name == "wrong.db":
            served("db", "upgrade")
        first, second = (served.findings(1) for _ in range(2))
        assert problems(first) == problems(second)
        (found,) = problems(first)
        assert (found["check"], owner in found["detail"]) == ("ownership", True)
        assert found["advice"].startswith("Set RQSCHED_DATABASE_URL to that database")
        assert set(first) == set(second)
        assert "schema" not in first, "db upgrade is no remedy here"


def problems(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in found.values() if finding["level"] == "problem"]


def test_a_forgotten_database_url_is_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RQSCHED_DATABASE_URL")
    finding = cli.findings(1)["settings"]
    assert finding["detail"].startswith("RQSCHED_REDIS_URL is set but RQSCHED_DATABASE_URL is unset; set it too.")


def test_workers_with_another_database_are_named(served: Cli) -> None:
    runtime = served.scheduler.runtime
    redis = runtime.transport.redis
    telemetry.record_foreign_worker(redis, runtime.ownership.database_id(), "host-7 (rq-1)", now=runtime.now())
    first, second = (served.findings(1)["foreign workers"] for _ in range(2))
    assert first == second
    assert (
        first["detail"] == "Workers of another database take jobs of this one, and cannot execute them: host-7 (rq-1)."
    )
    assert first["advice"].startswith("Set RQSCHED_DATABASE_URL of these workers")


@pytest.mark.parametrize(
    ("config", "check", "level", "code"),
    [
        pytest.param({"maxmemory-policy": "allkeys-lru"}, "eviction", "warning", 0, id="evicts, but has no limit"),
        pytest.param(
            {"maxmemory-policy": "allkeys-lru", "maxmemory": "1gb"}, "eviction", "problem", 1, id="evicts at a limit"
        ),
        pytest.param({"appendonly": "no"}, "persistence", "warning", 0, id="nothing appended"),
        pytest.param({"appendonly": "yes"}, "persistence", "ok", 0, id="appended"),
    ],
)
def test_risky_redis_settings_are_found(
    served: Cli, redis_config: Callable[..., None], config: dict[str, str], check: str, level: str, code: int
) -> None:
    redis_config(config)
    assert levels(served, code)[check] == level


@pytest.fixture
def redis_config(redis: Redis) -> Iterator[Callable[[dict[str, str]], None]]:
    """Sets options of the server, and puts them back."""
    before: dict[Any, Any] = {}

    def change(options: dict[str, str]) -> None:
        for name, value in options.items():
            before.update(redis.config_get(name))
            redis.config_set(name, value)

    yield change
    for name, value in before.items():
        redis.config_set(name, value)


def test_servers_that_do_not_answer_are_problems_without_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "sqlite:////nowhere/at/all.db")
    monkeypatch.setenv("RQSCHED_IMPORTS", "no.such.module")
    found = levels(cli, 1)
    assert {name for name, level in found.items() if level == "problem"} == {"imports", "database", "redis"}
    assert "schema" not in found


def test_database_that_is_away_is_the_only_problem_of_its_redis(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", "postgresql://app@127.0.0.1:1/app")
    found = cli.findings(1)
    assert [finding["check"] for finding in problems(found)] == ["database"]
    assert found["redis"]["level"] == "ok"


def test_sqlite_files_that_everybody_can_read_are_named(served: Cli) -> None:
    path = Path(str(served.scheduler.runtime.database.engine.url.database))
    path.chmod(0o600)
    Path(f"{path}-wal").chmod(0o600)
    Path(f"{path}-shm").chmod(0o600)
    assert "can read" not in served.findings(0)["database"]["detail"]
    path.chmod(0o644)
    assert f"can read {path}" in served.findings(0)["database"]["detail"]


def test_a_database_without_tables_is_told_to_upgrade(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    finding = cli.findings(1)["schema"]
    assert finding["advice"] == "Run `rqsched db upgrade`."


def test_the_table_ends_with_a_summary(cli: Cli) -> None:
    cli.scheduler.create("a", HELLO, Every("1h"))
    out = cli("doctor", code=1).out
    assert out.splitlines()[0].split() == ["Check", "Status", "Found", "What", "To", "Do"]
    assert "1 problem," in out.splitlines()[-1]


@pytest.mark.postgres
def test_postgresql_is_examined_too(cli: Cli, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", postgres_url)
    found = cli.findings(0)
    assert found["database"]["detail"].startswith("PostgreSQL ")
    assert "SQL " in found["clock"]["detail"]


@pytest.mark.postgres
def test_a_postgresql_without_tables_refuses_commands_with_the_way_out(
    cli: Cli, empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_DATABASE_URL", empty_postgres_url)
    assert "run `rqsched db upgrade`" in cli("list", code=5).err
    cli("db", "upgrade")
    assert cli("list").out == "Namespace: default\nNo schedules.\n"


def test_dispatchers_that_cannot_write_to_sql_are_named_with_its_answer(served: Cli) -> None:
    """SQL still answers doctor's reads, as on a full disk."""
    runtime = served.scheduler.runtime
    heartbeat = DispatcherHeartbeat(runtime.transport.redis, runtime.transport.control.name, runtime.now)
    for waits_for, level in (("the disk is full.", "problem"), ("", "ok")):
        heartbeat.waits_for = waits_for
        heartbeat.send()
        found = served.findings(1 if waits_for else 0)
        assert (found["waits"]["level"], found["dispatchers"]["level"]) == (level, "ok")
        assert ("(the disk is full)" in found["waits"]["detail"]) is bool(waits_for)
    heartbeat.waits_for = "the disk is full"
    heartbeat.send()
    heartbeat.stop()
    assert runtime.transport.redis.keys("rqsched:dispatcher-waits*") == []


def test_a_redis_that_cannot_write_to_its_disk_is_told_from_one_that_is_away(
    cli: Cli, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", own_valkey.url)
    with refusing(own_valkey, "MISCONF"):
        found = cli.findings(1)
    assert found["redis"]["detail"].startswith("Redis refuses: MISCONF ")
    assert "Make room" in found["redis"]["advice"]


def test_a_user_of_redis_that_may_not_ask_how_it_is_set_up_is_no_problem(
    cli: Cli, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", own_valkey.url)
    with Redis.from_url(own_valkey.url) as redis:
        redis.execute_command("ACL SETUSER default -info")
    found = cli.findings(0)
    assert "takes writes" in found["redis"]["detail"]
    assert all("not known" in found[name]["detail"] for name in ("eviction", "memory", "persistence"))


@pytest.mark.parametrize("name", ["no.such.Serializer", "json.JSONDecoder"])
def test_serializer_that_cannot_be_used_is_found_before_anything_is_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RQSCHED_QUEUE_SERIALIZERS", json.dumps({"legacy": name}))
    found = cli.findings(1)["servers"]
    assert name in found["detail"]
    assert "RQSCHED_QUEUE_SERIALIZERS" in found["detail"]
    assert "Correct it" in found["advice"]


def test_each_named_connection_that_refuses_writes_is_named(
    cli: Cli, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQSCHED_CONNECTIONS", json.dumps({"eu": own_valkey.url, "gone": "redis://127.0.0.1:1/0"}))
    with refusing(own_valkey, "READONLY"):
        found = cli.findings(1)["connections"]
    assert "eu: Redis refuses: READONLY" in found["detail"]
    assert "gone: Redis does not answer" in found["detail"]
    assert "RQSCHED_CONNECTIONS" in found["advice"]


def test_a_dispatcher_that_leaves_is_not_seen_and_one_that_fell_silent_is_forgotten(cli: Cli) -> None:
    runtime = cli.scheduler.runtime
    redis = runtime.transport.redis
    heartbeat = DispatcherHeartbeat(redis, runtime.transport.control.name, runtime.now)
    heartbeat.send()
    assert [one.name.rpartition(":")[2] for one in live_dispatchers(redis, "rqsched")] == [str(os.getpid())]
    redis.sadd("rqsched:dispatchers:rqsched", "gone:1")
    assert len(live_dispatchers(redis, "rqsched")) == 1
    assert redis.scard("rqsched:dispatchers:rqsched") == 1
    heartbeat.stop()
    assert live_dispatchers(redis, "rqsched") == []
