"""The alert rules and the dashboard use metrics of the real `/metrics`, and each alert fires in some world."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from examples.monitoring import dashboard
from rqsched import Every
from rqsched.api.health import Level, examine
from rqsched.features.notifications.decide import DeliveryStatus
from tests.dashboard import test_agreement as agreement
from tests.dashboard.test_agreement import FAULTS, clock, pages
from tests.support.env import MINUTE, ONCE, Env
from tests.support.pages import Pages
from tests.support.processes import REPOSITORY, SOON, wait_until
from tests.support.prometheus import PROMETHEUS, PROMTOOL, Prometheus, prometheus, refuted
from tests.support.servers import ValkeyServer
from tests.support.serving import served
from tests.support.web import MakeWeb, Web

__all__ = ["clock", "pages"]

RULES = REPOSITORY / "examples" / "monitoring" / "alerts.yml"
PAGE = REPOSITORY / "docs" / "monitoring.md"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
PANELS = [one for one in dashboard.dashboard()["panels"] if one["type"] != "row"]
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus)")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus (Debian: prometheus)")

FIRE = {
    "a schedule is late": {"RqschedFiresLate"},
    "a schedule is dead": {"RqschedScheduleDead"},
    "a schedule fails repeatedly": {"RqschedSchedulesFail"},
    "a run is blocked": {"RqschedRunsBlocked"},
    "no success in time": {"RqschedNoSuccess"},
    "a notification was given up": {"RqschedNotificationsFail"},
    "a queue without a worker": {"RqschedRunsWait"},
    "runs wait longer than they may": {"RqschedRunsWait"},
    "a run takes longer than expected": {"RqschedRunsLong"},
    "no dispatcher": {"RqschedNothingFires"},
    "SQL is restored": {"RqschedWentBack"},
    "two databases write": {"RqschedWentBack"},
}
"""The alerts of the faults that every surface names; of the others none."""
ELSEWHERE = {
    "RqschedMetricsMissing": "nobody answers",
    "RqschedBackendAway": "Redis is killed",
    "RqschedRunsExpire": "one run after another expires",
    "RqschedRedisFull": "Redis is filled to 0.95 of `maxmemory`",
    "RqschedRefused": "the key of a queue is somebody's",
    "RqschedAllFrozen": "everything is frozen",
    "RqschedFrozen": "a namespace is frozen",
}
"""The alerts of worlds of their own."""


def scraped(web: Web) -> str:
    web.app.state.rqsched.meter.refresh(force=True)
    return web.get("/metrics").text


def series_of(metrics: str) -> dict[str, float]:
    """Each series of an answer of `/metrics`, as Prometheus has it."""
    found = re.findall(r"^([^#\s].*) (\S+)$", metrics, re.MULTILINE)
    return {name: float(value) for name, value in found} | {'up{job="rqsched"}': 1.0}


def test_every_alert_has_a_world_it_fires_in() -> None:
    assert {one["alert"] for one in ALERTS} == set().union(*FIRE.values()) | ELSEWHERE.keys()
    assert set(FIRE) <= set(FAULTS)


def test_the_page_tells_each_alert_with_its_severity() -> None:
    rows = re.findall(r"^\| `(Rqsched\w+)` \| .+ \| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(one["alert"], one["labels"]["severity"]) for one in ALERTS]


def test_the_readme_tells_each_panel_with_what_it_asks() -> None:
    assert dashboard.README.read_text().endswith(dashboard.table()), "run python -m examples.monitoring.dashboard"


@needs_promtool
@pytest.mark.parametrize("name", FAULTS)
def test_an_alert_fires_in_the_world_of_its_fault_and_no_other_does(name: str, pages: Pages, tmp_path: Path) -> None:
    FAULTS[name].make(pages.env)
    pages.env.advance(datetime.now(UTC) - pages.env.clock.now())
    if name != "no dispatcher":  # its heartbeat expires in real time
        agreement.heartbeat(pages.env).send()

    series = series_of(scraped(pages.web))

    assert refuted(RULES, series, FIRE.get(name, set()), tmp_path) == ""


@needs_promtool
def test_an_alert_fires_while_one_run_after_another_expires(pages: Pages, tmp_path: Path) -> None:
    env = pages.env
    env.advance(datetime.now(UTC) - env.clock.now())
    scraped(pages.web)
    agreement.heartbeat(env).send()
    env.create("nobody", Every("30d"), start_within=MINUTE).trigger()
    env.advance(2 * MINUTE)
    assert env.recover().expired == 1
    env.advance(datetime.now(UTC) - env.clock.now())
    series = series_of(scraped(pages.web))
    assert series['rqsched_runs_expired_total{namespace="default"}'] == 1

    assert refuted(RULES, series, set(), tmp_path) == "", "a counter says nothing of the time before it was seen"
    grows = {'rqsched_runs_expired_total{namespace="default"}': 1}
    assert refuted(RULES, series, {"RqschedRunsExpire"}, tmp_path, grows) == ""


@needs_promtool
def test_alerts_fire_when_redis_is_full_and_when_it_is_away(
    make_web: MakeWeb, own_valkey: ValkeyServer, tmp_path: Path
) -> None:
    web = make_web(redis_url=own_valkey.url)
    agreement.heartbeat(web.env).send()
    for number in range(1_000):
        web.env.redis.set(f"of others: {number}", bytes(32 * 1024))
    used: Any = web.env.redis.info("memory")
    web.env.redis.config_set("maxmemory", int(used["used_memory"] / 0.95))
    assert refuted(RULES, series_of(scraped(web)), {"RqschedRedisFull"}, tmp_path) == ""

    own_valkey.kill()

    assert refuted(RULES, series_of(scraped(web)), {"RqschedBackendAway"}, tmp_path) == ""


@needs_promtool
def test_an_alert_fires_when_the_key_of_a_queue_is_somebodys(pages: Pages, tmp_path: Path) -> None:
    agreement.heartbeat(pages.env).send()
    pages.env.redis.set("rq:queue:default", "somebody's")
    pages.env.create("once", Every("30d")).trigger()
    assert refuted(RULES, series_of(scraped(pages.web)), {"RqschedRefused"}, tmp_path) == ""


@needs_promtool
def test_an_alert_fires_when_everything_is_frozen_and_when_nobody_answers(pages: Pages, tmp_path: Path) -> None:
    pages.env.scheduler.freeze("restoring", everything=True)
    assert refuted(RULES, series_of(scraped(pages.web)), {"RqschedAllFrozen"}, tmp_path) == ""
    assert refuted(RULES, {'up{job="rqsched"}': 0.0}, {"RqschedMetricsMissing"}, tmp_path) == ""


@needs_promtool
@pytest.mark.parametrize("name", ["a schedule is late", "no success in time", "runs wait longer than they may"])
def test_of_a_frozen_namespace_only_that_is_told(name: str, pages: Pages, tmp_path: Path) -> None:
    FAULTS[name].make(pages.env)
    pages.env.advance(datetime.now(UTC) - pages.env.clock.now())
    agreement.heartbeat(pages.env).send()
    pages.env.scheduler.freeze("it moves")

    assert refuted(RULES, series_of(scraped(pages.web)), {"RqschedFrozen"}, tmp_path) == ""
    wrong = {one.check for one in examine(pages.env.runtime) if one.level is not Level.OK}
    assert "frozen" in wrong
    assert wrong.isdisjoint({"late", "successes", "workers"})


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_what_its_code_makes() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run python -m examples.monitoring.dashboard"


def test_rules_and_panels_ask_for_metrics_and_labels_that_there_are(pages: Pages) -> None:
    env = pages.env
    env.run_next(env.create())
    scraped(pages.web)
    env.run_next(env.create("again"))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", scraped(pages.web), re.MULTILINE))
    parts = {"histogram": ("_bucket", "_count")}
    known = {f"{name}{end}" for name, kind in kinds.items() for end in ("", *parts.get(kind, ()))}
    queries = [str(one["expr"]) for one in ALERTS] + [one["expr"] for panel in PANELS for one in panel["targets"]]

    asked = {name for query in queries for name in re.findall(r"\brqsched_\w+", query)}

    assert len(asked) > 20
    assert asked - known == set()


def everything(env: Env) -> None:
    """Faults of each kind, beside a dispatcher that lives."""
    agreement.dead(env)
    failing = env.create("fails", agreement.RARELY, retry=ONCE)
    for _ in range(3):
        failing.trigger()
        env.execute_pending()
    env.failing = False
    agreement.undelivered(env, DeliveryStatus.FAILED)
    agreement.deserted(env)
    agreement.slow(env)
    agreement.silent(env)
    agreement.blocked(env)
    env.create("late", Every(MINUTE))


def work(env: Env) -> None:
    """One occurrence is executed, the next waits, another is skipped, and then the schedule is late."""
    schedule = env.scheduler.get("late")
    env.run_next(schedule)
    for _ in range(2):
        env.fire_next(schedule)
    env.advance(3 * MINUTE)


def has_seen(server: Prometheus, series: dict[str, float]) -> bool:
    """Whether it has scraped the count of measured runs that there is."""
    counted = "rqsched_run_duration_seconds_count"
    return server.ask(f"sum({counted})") == [sum(value for name, value in series.items() if name.startswith(counted))]


def asked(query: str) -> str:
    """A query as Grafana asks it, but for data alone: nothing stands in for what there is not."""
    return query.replace("$namespace", ".*").replace("$__rate_interval", "1h").removesuffix(" or vector(0)")


def lacking(server: Prometheus) -> dict[str, str]:
    """The queries that find no data now, by the panel: one that was not scraped in time has none either."""
    queries = [(panel["title"], one["expr"]) for panel in PANELS for one in panel["targets"]]
    return {title: query for title, query in queries if not server.ask(asked(query))}


@needs_prometheus
def test_every_query_of_every_panel_finds_data_in_a_real_prometheus(pages: Pages, tmp_path: Path) -> None:
    web, env = pages.web, pages.env
    everything(env)
    limit = str(env.redis.config_get("maxmemory")["maxmemory"])
    env.redis.config_set("maxmemory", 1 << 40)
    try:
        with served(web.app) as url, prometheus(url, tmp_path) as server:
            scraped(web)
            for _ in range(2):  # of a series that is new, nothing is known of the time before
                work(env)
                wait_until(partial(has_seen, server, series_of(scraped(web))), timeout=SOON, what="a scrape")
            wait_until(lambda: not lacking(server), timeout=SOON, what=lambda: f"data for {lacking(server)}")
    finally:
        env.redis.config_set("maxmemory", limit)
