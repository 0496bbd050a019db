"""`simulate` reports a span by measured or given durations, and reports the same each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import sqlalchemy as sa

from rqsched import After, Cron, Every, Scheduler
from rqsched.errors import DatabasePrivilegeError, InvalidDurationError, InvalidInputError, UpstreamError
from rqsched.features.declarations.declarations import Declaration
from rqsched.kernel.store.database import Connection
from rqsched.kernel.store.tables import metadata, schedules
from rqsched.simulate.api import simulate, wanted_of
from rqsched.simulate.entries import declared, stored
from rqsched.types import Options, Simulation
from tests.support.env import DAY, HOUR, MINUTE, NOON, ONCE, Env

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def of(
    env: Env, *given: Declaration, days: int = 7, start: datetime = NEW_YEAR, most: int | None = None, **more: Any
) -> Simulation:
    """A simulation of declarations, without a server."""
    wanted = wanted_of(start, start=start, end=start + days * DAY, **more)
    wanted = wanted if most is None else wanted._replace(most_fires=most)
    entries = declared(env.runtime, given, "default", start, is_measured=False)
    return simulate(entries, wanted, now=start, env=env.runtime.settings.environment)


def counted_writes(env: Env) -> dict[str, int]:
    """How many rows each table has, and how often schedules were written."""

    def read(connection: Connection) -> dict[str, int]:
        found = {table.name: sa.select(sa.func.count()).select_from(table) for table in metadata.sorted_tables}
        return {name: connection.execute(statement).scalar_one() for name, statement in found.items()} | {
            row.uid: row.event_sequence for row in connection.execute(sa.select(schedules))
        }

    return env.runtime.database.read(read)


def test_runs_that_last_beyond_the_next_fire_are_skipped_or_wait_as_their_policy_says(env: Env) -> None:
    found = of(
        env,
        Declaration("skips", "app.f", Every("10m"), {"timeout": "1h"}),
        Declaration("waits", "app.f", Every("10m"), {"overlap": "buffer_one", "timeout": "1h"}),
        Declaration("fits", "app.g", Every("10m")),
        durations={"app.f": "15m", "app.g": "5m"},
        days=1,
    )
    told = {one.name: one for one in found.outcome.schedules}
    assert (told["skips"].started, told["skips"].skipped) == (72, {"overlap_policy_skip": 71})
    assert told["waits"].waited + told["waits"].skipped["buffer_full"] == told["waits"].overlapped == 142
    assert "fits" not in told
    assert found.fires == 3 * 143


def test_a_queue_with_too_few_workers_falls_behind_and_another_keeps_up(env: Env) -> None:
    given = [
        Declaration(f"s{n}", "app.f", Cron("0 * * * *"), {"queue": "slow", "timeout": "1h", "overlap": "allow_all"})
        for n in range(5)
    ]
    found = of(
        env,
        *given,
        Declaration("one", "app.f", Cron("0 * * * *"), {"timeout": "1h"}),
        workers={"slow": 1, "default": 1},
        duration="14m",
        days=2,
    )
    slow, default = found.outcome.queues
    assert (slow.queue, slow.keeps_up, default.queue, default.keeps_up) == ("slow", False, "default", True)
    assert slow.behind[0].end == found.end
    assert slow.wait_max_seconds > slow.wait_p95_seconds > slow.wait_p50_seconds > 0
    assert default.wait_max_seconds == 0
    assert default.busy == pytest.approx(14 / 60, abs=0.01)


def test_the_longest_times_with_a_line_are_told_with_their_waits(env: Env) -> None:
    given = [Declaration(f"s{n}", "app.f", Cron("0 2 * * *"), {"timeout": "1h"}) for n in range(4)]
    [queue] = of(env, *given, workers={"default": 1}, duration="30m", days=1).outcome.queues
    assert [
        (one.start.hour, one.end - one.start, one.most_waiting, one.longest_wait_seconds) for one in queue.behind
    ] == [(2, 90 * MINUTE, 3, 5400.0)]
    assert queue.keeps_up


def test_a_night_on_which_clocks_change_says_what_is_shifted_skipped_and_doubled(env: Env) -> None:
    berlin: Options = {"timezone": "Europe/Berlin"}
    found = of(
        env,
        Declaration("shifts", "app.f", Cron("30 2 * * *"), berlin),
        Declaration("skips", "app.f", Cron("31 2 * * *"), {**berlin, "dst_gap": "skip"}),
        Declaration("doubles", "app.f", Cron("32 2 * * *"), {**berlin, "dst_fold": "both"}),
        Declaration("utc", "app.f", Cron("30 2 * * *")),
        days=365,
    )
    spring, autumn = found.nights
    assert (spring.at, spring.zone, spring.seconds, autumn.seconds) == (
        datetime(2027, 3, 28, 1, tzinfo=UTC),
        "Europe/Berlin",
        3600,
        -3600,
    )
    told = {one.schedules[0]: (one.effect, one.local, one.fires_at) for one in spring.effects}
    assert told["shifts"] == ("shifted", "2027-03-28 02:30", [datetime(2027, 3, 28, 1, 30, tzinfo=UTC)])
    assert told["skips"] == ("skipped", "2027-03-28 02:31", [])
    first = datetime(2027, 10, 31, 0, 32, tzinfo=UTC)
    assert [(one.schedules, one.effect, one.fires_at) for one in autumn.effects] == [
        (["doubles"], "doubled", [first, first + HOUR])
    ]
    fires = {one.name: one.fires for one in found.schedules}
    assert fires == {"shifts": 365, "skips": 364, "doubles": 366, "utc": 365}


def test_the_same_seed_gives_the_same_report_and_another_seed_another(env: Env) -> None:
    given = [
        Declaration(f"s{n}", "app.f", Every("10m"), {"queue": ("a", "b", "c")[n % 3], "jitter": "5m"}) for n in range(7)
    ]
    more: dict[str, Any] = {"duration": "3m", "failure_rate": 0.3, "workers": {"a": 1, "b": 2}, "days": 2}
    one, again, other = (json.dumps(of(env, *given, **more, seed=seed).to_dict()) for seed in (0, 0, 1))
    assert one == again
    assert other != one


def test_measured_durations_and_failures_of_what_is_stored_are_used(env: Env) -> None:
    schedule = env.create(spec=Every("1h"), retry=ONCE)
    env.register("note", lambda: env.clock.advance(20 * MINUTE))
    for _ in range(4):
        env.run_next(schedule, HOUR)
    env.fail_next(schedule, HOUR)
    now = env.clock.now()
    found = env.scheduler.simulate(now, now + DAY)
    [row] = found.schedules
    assert (row.name, row.duration_from, row.failure_rate) == ("report", "measured", 0.0)
    assert row.duration_seconds == pytest.approx(1200, rel=0.2)


def test_a_file_takes_the_measured_durations_of_the_same_ids_where_that_is_asked(env: Env) -> None:
    schedule = env.create("known", Every("1h"))
    env.register("note", lambda: env.clock.advance(20 * MINUTE))
    env.run_next(schedule, HOUR)
    given = [Declaration("known", "note", Every("1h")), Declaration("new", "note", Every("1h"))]
    found = env.scheduler.simulate(end=env.clock.now() + DAY, declarations=given)
    assert [(one.name, one.duration_from) for one in found.schedules] == [("known", "measured"), ("new", "nothing")]


def test_what_ends_by_itself_and_what_is_paused_is_simulated_as_it_will_be(env: Env) -> None:
    env.create("few", Every("1h"), max_runs=3)
    env.create("until", Every("1h")).pause(until=NOON + 5 * HOUR)
    env.create("paused", Every("1h"), paused=True)
    found = env.scheduler.simulate(NOON, NOON + 10 * HOUR)
    assert {one.name: one.fires for one in found.schedules} == {"few": 3, "until": 4}
    assert "Not simulated, because paused without an end of the pause: 1 schedule." in found.assumed
    later = env.scheduler.simulate(NOON + 2 * HOUR, NOON + 10 * HOUR)
    assert {one.name: one.fires for one in later.schedules}["few"] == 2


def test_what_comes_after_another_starts_when_that_ends_as_it_asks(env: Env) -> None:
    found = of(
        env,
        Declaration("nightly", "app.f", Cron("0 2 * * *"), {"timeout": "1d"}),
        Declaration("report", "app.g", After("nightly"), {"timeout": "1d"}),
        Declaration("mail", "app.h", After("report", on="end"), {"max_runs": 3, "timeout": "2d"}),
        Declaration("alarm", "app.i", After("report", on="failure")),
        durations={"app.f": "30m", "app.g": "2h", "app.h": "26h"},
    )
    assert {one.name: one.fires for one in found.schedules} == {"nightly": 7, "report": 7, "mail": 5, "alarm": 0}
    assert found.fires == sum(day.fires for day in found.days) == 19
    assert "3 schedules after another: each run begins at the end of the upstream run." in found.assumed
    told = {one.name: one for one in found.outcome.schedules}
    assert set(told) == {"mail"}
    assert (told["mail"].started, told["mail"].overlapped, told["mail"].skipped, told["mail"].ended) == (
        3, 2, {"overlap_policy_skip": 2, "remaining_actions_exhausted": 2}, {"succeeded": 3},
    )  # fmt: skip


def test_what_comes_after_what_takes_no_part_is_listed_with_its_whole_chain(env: Env) -> None:
    env.create("nightly", Every("1h"), paused=True)
    env.create("report", After("nightly"))
    env.create("mail", After("report", on="failure"))
    env.create("hourly", Every("1h"))
    found = env.scheduler.simulate(NOON, NOON + DAY)
    assert [one.name for one in found.schedules] == ["hourly"]
    assert [(one.name, one.what) for one in found.not_simulated] == [
        ("mail", "it comes after each failure of report; its chain begins with nightly, which is not simulated"),
        ("report", "it comes after each success of nightly; its chain begins with nightly, which is not simulated"),
    ]


def test_a_file_in_which_schedules_come_after_one_another_in_a_circle_is_refused(env: Env) -> None:
    given = [Declaration("a", "app.f", After("b")), Declaration("b", "app.f", After("a"))]
    with pytest.raises(UpstreamError, match="a after b after a is a cycle"):
        of(env, *given)


def test_a_limit_lets_so_many_of_its_group_run_at_once_and_its_waits_are_told(env: Env) -> None:
    of_group: Options = {"limit": "mail", "queue": "a", "timeout": "1h"}
    found = of(
        env,
        Declaration("first", "app.f", Cron("0 * * * *"), {**of_group, "limit_running": 1}),
        Declaration("second", "app.f", Cron("1 * * * *"), {**of_group, "queue": "b"}),
        Declaration("third", "app.f", After("second"), of_group),
        Declaration("free", "app.f", Cron("5 * * * *"), {"queue": "a", "timeout": "1h"}),
        duration="10m",
        workers={"a": 1},
        days=1,
    )
    [limit] = found.outcome.limits
    assert (limit.limit, limit.number, limit.places, limit.keeps_up) == ("mail", 1, 71, True)
    assert (limit.most_waiting, limit.waiting) == (1, 0)
    assert limit.full == pytest.approx(714 / 1440, abs=0.0001)
    assert (limit.wait_p50_seconds, limit.wait_max_seconds) == (0.0, 540.0)
    assert limit.behind[0].most_waiting == 1
    waits = {one.queue: one.wait_max_seconds for one in found.outcome.queues}
    assert waits == {"a": 300.0, "b": 0.0}  # runs in line wait for no worker
    assert found.not_simulated == []


def test_a_line_of_a_limit_that_only_grows_falls_behind(env: Env) -> None:
    given = [
        Declaration(f"s{n}", "app.f", Every("10m"), {"limit": "mail", "limit_running": 2, "overlap": "allow_all"})
        for n in range(3)
    ]
    [limit] = of(env, *given, duration="8m", days=2).outcome.limits
    assert (limit.keeps_up, limit.waiting > 50, limit.behind[0].end) == (False, True, NEW_YEAR + 2 * DAY)


def test_numbers_of_limits_are_those_of_the_file_and_else_those_that_are_stored(env: Env) -> None:
    env.create("first", Every("1h"), limit="mail", limit_running=1)
    env.create("second", Every("1h"), limit="mail")
    [limit] = env.scheduler.simulate(NOON, NOON + DAY, duration="1m").outcome.limits
    assert (limit.number, limit.places) == (1, 46)
    env.scheduler.limits.set("mail", 7)
    for number, options in ((7, {"limit": "mail"}), (3, {"limit": "mail", "limit_running": 3})):
        given = [Declaration("first", "note", Every("1h"), cast(Options, options))]
        [limit] = env.scheduler.simulate(NOON, NOON + DAY, declarations=given).outcome.limits
        assert limit.number == number


def test_a_rate_lets_so_many_begin_in_a_window_and_says_how_long_it_was_waited_for(env: Env) -> None:
    given = [
        Declaration(f"s{n}", "app.f", Cron("0 * * * *"), {"limit": "api", "limit_rate": "2/10min"}) for n in range(5)
    ]
    [limit] = of(env, *given, days=1, duration="1m").outcome.limits
    assert (limit.number, limit.rate, limit.places, limit.keeps_up) == (None, "2/10min", 5 * 23, True)
    assert (limit.most_waiting, limit.wait_p50_seconds, limit.wait_max_seconds) == (3, 600.0, 1200.0)
    assert limit.full is None
    assert limit.held_by_rate == pytest.approx(23 * 20 / 1440, abs=0.0001)


def test_a_retry_is_a_start_of_a_rate_and_a_number_beside_it_holds_too(env: Env) -> None:
    options: Options = {"limit": "api", "retry": {"max_retries": 1, "base": 60}}
    first = Declaration("s0", "app.f", Cron("0 * * * *"), {**options, "limit_running": 1, "limit_rate": "3/30min"})
    second = Declaration("s1", "app.f", Cron("0 * * * *"), options)
    found = of(env, first, second, days=1, duration="5m", failure_rate=1)
    [limit] = found.outcome.limits
    assert (limit.number, limit.rate, found.outcome.total.retries) == (1, "3/30min", 46)
    # First attempts from minute 0 and 5 on, a retry from 10 on; the other waits since 11 for a place, and from 15 to 30
    # for the rate.
    assert limit.wait_max_seconds == 19 * 60
    assert limit.full == pytest.approx(23 * 20 / 1440, abs=0.0001)
    assert limit.held_by_rate == pytest.approx(23 * 15 / 1440, abs=0.0001)


def test_rates_of_limits_are_those_of_the_file_and_else_those_that_are_stored(env: Env) -> None:
    env.create("first", Every("1h"), limit="mail", limit_running=1, limit_rate="5/min")
    env.create("second", Every("1h"), limit="mail")
    given = [Declaration("first", "note", Every("1h"), {"limit": "mail"})]
    for declarations in (None, given):
        found = env.scheduler.simulate(NOON, NOON + DAY, declarations=declarations)
        assert [(one.number, one.rate) for one in found.outcome.limits] == [(1, "5/min")]
        assert found.not_simulated == []
    given = [Declaration("first", "note", Every("1h"), {"limit": "mail", "limit_rate": "9/min"})]
    [limit] = env.scheduler.simulate(NOON, NOON + DAY, declarations=given).outcome.limits
    assert (limit.number, limit.rate) == (1, "9/min")


def test_what_is_moved_off_an_excluded_day_is_simulated_where_it_happens(env: Env) -> None:
    moved: Options = {"exclude": ["Sat, Sun"], "on_excluded": "next"}
    found = of(env, Declaration("payroll", "app.f", Cron("0 6 2 * *"), moved), days=40)
    assert [day.start.day for day in found.days if day.fires] == [4, 2]  # 2 January 2027 is a Saturday


def test_what_is_not_simulated_is_listed(env: Env) -> None:
    found = of(
        env,
        Declaration("fans", "app.f", Every("1h"), {"targets": "app.targets"}),
        Declaration("limited", "app.f", Every("1h"), {"limit": "mail"}),
        Declaration("works", "app.f", Cron("0 0 * * *"), {"exclude": ["holidays"]}),
        days=1,
    )
    assert [(one.name, one.what.partition(":")[0]) for one in found.not_simulated] == [
        ("fans", "its targets"),
        ("limited", "its limit mail"),  # whose number is not given
        ("works", "its calendars holidays"),
    ]


def test_calendars_that_are_stored_are_simulated(env: Env) -> None:
    env.scheduler.calendars.set("holidays", ["2026-01-17/2026-01-18"])
    env.create("works", Cron("0 6 * * *"), exclude=["holidays"])
    given = [Declaration("works", "note", Cron("0 6 * * *"), {"exclude": ["holidays"]})]
    for declarations in (None, given):
        found = env.scheduler.simulate(NOON, NOON + 7 * DAY, declarations=declarations)
        assert (found.fires, found.outcome.total.excluded, found.not_simulated) == (5, 2, [])


def test_a_simulation_writes_nothing_and_needs_no_redis(env: Env) -> None:
    env.create("hourly", Every("1h"))
    before = counted_writes(env)
    with Scheduler(
        database_url=env.runtime.settings.database_url, redis_url="redis://127.0.0.1:1/0", clock=env.clock
    ) as away:
        assert away.simulate(NOON, NOON + DAY).fires == 23
        assert len(stored(away.runtime, None)) == 1
    assert env.scheduler.simulate(NOON, NOON + DAY).fires == 23
    assert counted_writes(env) == before


@pytest.fixture
def reader(postgres_env: Env) -> Iterator[str]:
    """The URL of a user of PostgreSQL that may do nothing yet."""
    with postgres_env.runtime.database.engine.begin() as connection:
        connection.execute(sa.text("CREATE ROLE reader LOGIN PASSWORD 'x'"))
    url = sa.make_url(postgres_env.runtime.settings.database_url or "").set(username="reader", password="x")
    yield url.render_as_string(hide_password=False)
    with postgres_env.runtime.database.engine.begin() as connection:
        connection.execute(sa.text("DROP OWNED BY reader"))
        connection.execute(sa.text("DROP ROLE reader"))


def test_a_user_that_may_only_read_may_simulate_and_one_that_may_not_is_told_what_to_grant(
    postgres_env: Env, reader: str
) -> None:
    postgres_env.create("hourly", Every("1h"), limit="mail", limit_running=1)
    postgres_env.create("report", After("hourly"))

    def fires() -> int:
        url = "redis://127.0.0.1:1/0"
        with Scheduler(database_url=reader, redis_url=url, clock=postgres_env.clock) as scheduler:
            return scheduler.simulate(NOON, NOON + DAY).fires

    with pytest.raises(DatabasePrivilegeError, match="GRANT SELECT ON rqsched_schedules TO reader") as caught:
        fires()
    assert {one.split(" ON ")[0] for one in caught.value.missing} == {"SELECT"}
    with postgres_env.runtime.database.engine.begin() as connection:
        connection.execute(sa.text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
    assert fires() == 46


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": NEW_YEAR.replace(tzinfo=None)}, "start: must be an aware datetime"),
        ({"end": NEW_YEAR}, "end: must be at least a minute after the start"),
        ({"end": NEW_YEAR + 1101 * DAY}, "end: is more than 1100 days after the start; simulate a shorter span"),
        ({"start": datetime.max.replace(tzinfo=UTC)}, "start: must be in the years from 1970 to 9989"),
        ({"start": datetime(1, 1, 1, tzinfo=UTC), "end": datetime(1, 1, 3, tzinfo=UTC)}, "start: must be in the years"),
        ({"end": datetime.max.replace(tzinfo=UTC)}, "end: must be in the years from 1970 to 9989"),
        ({"workers": "default=4"}, "workers: must be a mapping, not str; write {'default': ...}"),
        ({"workers": {"default": 0}}, "workers: default=0 must be a whole number from 1 to 1,000,000"),
        ({"workers": {"default": 10**20}}, f"workers: default={10**20} must be a whole number from 1 to 1,000,000"),
        ({"workers": {"defualt": 1}}, "workers: no simulated schedule uses the queue 'defualt'; did you mean default?"),
        ({"durations": {"hurly": "1m"}}, "durations: 'hurly' is not a simulated schedule or its workflow; did you mean hourly?"),  # noqa: E501
        ({"failure_rate": 2}, "failure_rate: must be from 0 to 1"),
        ({"failure_rate": "2%"}, "failure_rate: must be from 0 to 1"),
        ({"seed": "x"}, "seed: must be a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_by_name(env: Env, given: dict[str, Any], message: str) -> None:
    env.create("hourly", Every("1h"))
    with pytest.raises(InvalidInputError) as caught:
        env.scheduler.simulate(**{"start": NEW_YEAR, "end": NEW_YEAR + timedelta(days=1)} | given)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["duration", "durations.app.f"])
def test_a_length_that_is_none_is_refused_by_name(env: Env, name: str) -> None:
    given: dict[str, Any] = {"duration": "soon"} if name == "duration" else {"durations": {"app.f": "soon"}}
    with pytest.raises(InvalidDurationError, match=name):
        env.scheduler.simulate(**given)


def test_a_span_with_too_many_fires_is_refused_before_the_first_is_decided(env: Env) -> None:
    with pytest.raises(InvalidInputError, match="end: makes about 10,079 fires, more than 10,000; give an earlier end"):
        of(env, Declaration("often", "app.f", Cron("* * * * *")), most=10_000)
