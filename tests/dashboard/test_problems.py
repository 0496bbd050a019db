"""The page of current problems: doctor's findings on servers and databases, and the problems of schedules."""

from __future__ import annotations

import re
from html import unescape

import pytest
import sqlalchemy as sa

from rqsched import Cron, Every, RetryPolicy, errors
from rqsched.kernel.transport import telemetry
from tests.support.env import DAY, HOUR, MINUTE, ONCE, block
from tests.support.narrow import present
from tests.support.pages import Pages
from tests.support.web import MakeWeb, one_token

AHEAD = """
CREATE SCHEMA ahead;
CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql
  AS $$ SELECT pg_catalog.clock_timestamp() + interval '90 seconds' $$;
"""


def problem_of(page: str, title: str) -> str:
    """The article that begins with a title."""
    articles: list[str] = re.findall(r'<article class="problem.*?</article>', page, re.DOTALL)
    (found,) = [article for article in articles if title in article]
    return found


def test_a_redis_of_another_database_is_a_problem_with_its_remedy(pages: Pages) -> None:
    transport = pages.env.transport
    transport.redis.set(transport.database_id_key, "somebody-else")
    found = problem_of(pages.get("/"), "Redis belongs to another database")
    assert "somebody-else" in found
    assert pages.env.runtime.ownership.database_id() in found
    assert "Set RQSCHED_DATABASE_URL to that database" in found


def test_workers_with_another_database_are_a_problem_with_its_remedy(pages: Pages) -> None:
    runtime = pages.env.runtime
    owner = runtime.ownership.database_id()
    telemetry.record_foreign_worker(pages.env.redis, owner, "host-7 (rq-1)", now=runtime.now())
    found = problem_of(pages.get("/"), "Workers with another database take jobs of this one")
    assert "host-7 (rq-1)" in found
    assert "restart them" in found


def test_viewers_of_one_namespace_are_told_what_to_do_in_the_words_of_the_application(
    make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "tenant-secret-0123456789"
    pages = Pages(make_web(tokens=one_token(secret, "read", namespaces=["tenant"])))
    pages.web.headers["authorization"] = f"Bearer {secret}"
    pages.env.recover()
    pages.env.create("one", namespace="tenant")
    monkeypatch.setattr(errors, "_words", [lambda text: text.replace("`rqsched ", "`manage.py rqsched ")])

    found = problem_of(pages.get("/?namespace=tenant"), "No dispatcher is alive")

    assert "manage.py rqsched worker" in found
    assert "Ask an operator" not in found


@pytest.mark.postgres
def test_viewers_of_one_namespace_are_not_told_the_user_and_the_tables_of_the_database(
    make_web: MakeWeb, postgres_url: str
) -> None:
    role, secret = f"limited_{postgres_url[-8:]}", "tenant-secret-0123456789"
    owner = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    url = postgres_url.replace("postgres@", f"{role}@")
    pages = Pages(make_web(database_url=url, tokens=one_token(secret, "read", namespaces=["tenant"])))
    with owner.connect() as connection:
        connection.exec_driver_sql(f"REVOKE UPDATE ON rqsched_runs FROM {role}")
        pages.web.headers["authorization"] = f"Bearer {secret}"
        found = problem_of(pages.get("/?namespace=tenant"), "The database cannot be used fully")
        connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
    owner.dispose()
    assert "The user of the database lacks privileges." in found
    assert "Ask an operator" in found
    assert not re.search(f"{role}|rqsched_runs|GRANT", found)


@pytest.mark.postgres
def test_clocks_that_differ_are_a_problem_with_its_remedy(make_web: MakeWeb, postgres_url: str) -> None:
    engine = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    name = sa.make_url(postgres_url).database
    with engine.connect() as connection:
        connection.exec_driver_sql(AHEAD)
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET search_path = ahead, pg_catalog, public')
    engine.dispose()
    found = problem_of(Pages(make_web(database_url=postgres_url)).get("/"), "Clocks differ")
    assert re.search(r"SQL's clock is (89|9\d)\.\d s ahead of this machine's", found.replace("&#39;", "'"))
    assert "Run NTP on every machine." in found


def test_clocks_that_agree_are_none(pages: Pages) -> None:
    assert "Clocks differ" not in pages.get("/")


def test_a_schedule_that_fails_again_and_again_is_a_problem_with_its_button(pages: Pages) -> None:
    env = pages.env
    schedule = env.create("crm", spec=Cron("0 2 1 * *"), retry=ONCE)
    env.failing = True
    for _ in range(3):
        schedule.trigger()
        env.execute_pending()
    env.advance(3 * DAY)  # a monthly schedule counts as failing, too
    found = problem_of(pages.get("/"), "1 schedule is failing repeatedly")
    assert "Fix the cause" in found
    assert "/schedules/crm/confirm?action=trigger" in found


def test_a_dead_schedule_is_a_problem_that_a_button_revives(pages: Pages) -> None:
    env = pages.env
    env.failing = True
    env.create("crm", retry=RetryPolicy(max_retries=0, then="dead")).trigger()
    env.execute_pending()
    found = problem_of(pages.get("/"), "1 schedule is dead")
    assert "/schedules/crm/confirm?action=restart" in found
    pages.do("/schedules/crm/do", action="restart")
    assert "is dead" not in pages.get("/")


def test_what_the_servers_lack_stands_before_what_may_soon_fail(pages: Pages) -> None:
    env = pages.env
    env.create("late", spec=Every(MINUTE))
    env.advance(HOUR)
    titles = re.findall(r'<article class="problem (\w+)">', pages.get("/"))
    assert titles == sorted(titles), "bad before warn"


def test_text_of_others_that_only_looks_like_a_time_is_shown_as_it_is(pages: Pages) -> None:
    env = pages.env
    run = present(env.create("billing").trigger().run)
    block(env.runtime, run, "START='2026-02-30T00:00:00Z', END='0001-01-01T00:00:00Z'")
    found = unescape(problem_of(pages.get("/"), "1 schedule is blocked"))
    assert "START='2026-02-30T00:00:00Z'" in found


def test_a_blocked_run_says_which_worker_lacked_which_code(pages: Pages) -> None:
    env = pages.env
    run = present(env.create("billing").trigger().run)
    block(env.runtime, run, "no module named 'invoices'")
    found = problem_of(pages.get("/"), "1 schedule is blocked").replace("&#39;", "'")
    assert re.search(r"[\w.-]+: no module named 'invoices'", found), "the worker is named"
    assert "RQSCHED_IMPORTS" in found
