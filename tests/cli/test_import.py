"""import: the schedules of another scheduler are shown, written and handed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import rq_scheduler  # type: ignore[import-untyped]

from rqsched.importers.rq_scheduler import SCHEDULED
from tests.support.cli import BY_PATH, Cli

pytestmark = pytest.mark.filterwarnings("ignore:.*utc.*:DeprecationWarning")
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
FROM = SOON.isoformat().replace("+00:00", "Z")


@pytest.fixture
def theirs(cli: Cli) -> Any:
    """Two jobs of rq-scheduler, of which one cannot be imported."""
    found = rq_scheduler.Scheduler("low", connection=cli.scheduler.runtime.transport.redis)
    found.schedule(SOON, BY_PATH, interval=3600, id="hourly", timeout=60, meta={"who": "ops"})
    found.enqueue_at(SOON, BY_PATH, {1}, job_id="set")
    return found


@pytest.fixture
def words(redis_url: str, theirs: Any) -> tuple[str, ...]:
    return ("import", "rq-scheduler", redis_url, "--trust-source")


def test_a_dry_run_shows_what_each_becomes_and_writes_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    answer = cli(*words, "--dry-run", code=1)
    table, _, rest = answer.out.partition("\n- ")
    assert [line.split() for line in table.splitlines()] == [
        ["Source", "Schedule", "ID", "When", "Outcome", "Fires"],
        ["hourly", "rq-scheduler:hourly", "every", "1h", "from", FROM, "created", "source"],
        ["set", "-", "-", "not", "imported", "source"],
    ]
    assert "Its meta is lost (who): pass it as arguments. (hourly)" in rest
    assert "an argument holds a set, which is not JSON" in rest
    assert "Would be: 1 created, 1 not imported." in rest
    assert "1 fire at rq-scheduler; ours wait, paused: run this with --disable-source" in rest
    assert "1 are not imported, and stay at rq-scheduler (set)." in rest
    assert cli.ids() == []


def test_the_embedded_default_is_named_as_the_place_of_ours(
    cli: Cli, words: tuple[str, ...], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare command reads no settings of a project. Without this, jobs stop there and nobody fires ours."""
    monkeypatch.setenv("RQSCHED_DATA_DIR", str(data_dir))
    place = f"Ours belong to {data_dir}, for RQSCHED_DATABASE_URL is unset."
    assert place not in cli(*words, "--dry-run", code=1).out
    monkeypatch.delenv("RQSCHED_DATABASE_URL")
    monkeypatch.delenv("RQSCHED_REDIS_URL")
    assert place in cli(*words, "--dry-run", code=1).out


def test_programs_get_the_same_as_json(cli: Cli, words: tuple[str, ...]) -> None:
    document = cli(*words, "-o", "json", code=1).json
    assert list(document) == ["kind", "entries", "notes", "next"]
    assert document["entries"][0] == {
        "source_id": "hourly",
        "schedule_id": "rq-scheduler:hourly",
        "workflow": BY_PATH,
        "timing": f"every 1h from {FROM}",
        "outcome": "created",
        "fires": "source",
        "next_at_source": FROM,
        "lost": [
            "Its interval counts from its next time. rq-scheduler counts from each fire, so its times drift.",
            "Its meta is lost (who): pass it as arguments.",
        ],
    }
    assert [row["outcome"] for row in cli(*words, "-o", "jsonl", code=1).lines] == ["unchanged", "not imported"]


def test_disabling_the_source_lets_ours_fire_and_says_how_to_go_back(cli: Cli, words: tuple[str, ...]) -> None:
    answer = cli(*words, "--disable-source", code=1)
    assert f"ZUNIONSTORE {SCHEDULED} 2 {SCHEDULED} rqsched:disabled:rq-scheduler puts them back." in answer.out
    assert cli.scheduler.get("rq-scheduler:hourly").next_run_at == SOON
    assert cli("list", "--label", "imported_from=rq-scheduler", "-o", "json").json["schedules"][0]["status"] == "active"


def test_the_way_back_lets_theirs_fire_alone(cli: Cli, words: tuple[str, ...]) -> None:
    cli(*words, "--disable-source", code=1)
    cli("bulk", "pause", "--label", "imported_from=rq-scheduler")
    redis = cli.scheduler.runtime.transport.redis
    redis.zunionstore(SCHEDULED, [SCHEDULED, "rqsched:disabled:rq-scheduler"])
    redis.delete("rqsched:disabled:rq-scheduler")
    answer = cli(*words, "--disable-source", "-o", "json", code=1)
    assert [row["fires"] for row in answer.json["entries"]] == ["source", "source"]
    assert (
        "1 fire at rq-scheduler: ours were paused here by somebody (hourly). To move them, stop rq-scheduler and "
        "resume ours; then run this with --disable-source, and take out of your application what schedules them there."
    ) in answer.json["next"]
    assert redis.zcard(SCHEDULED) == 2
    cli("bulk", "resume", "--label", "imported_from=rq-scheduler")
    answer = cli(*words, "--disable-source", "-o", "json", code=1)
    assert [row["fires"] for row in answer.json["entries"]] == ["here", "source"]


def test_a_stopped_source_is_left_as_it_is(cli: Cli, words: tuple[str, ...]) -> None:
    cli(*words, "--source-is-stopped", code=1)
    assert cli.scheduler.get("rq-scheduler:hourly").status == "active"
    assert cli.scheduler.runtime.transport.redis.zcard(SCHEDULED) == 2
    assert "1 fire at rq-scheduler and here, unless it is stopped" in cli(*words, code=1).out


def test_a_source_whose_all_is_imported_is_a_success(cli: Cli, words: tuple[str, ...], theirs: Any) -> None:
    theirs.cancel("set")
    assert "1 created." in cli(*words).out


def test_what_is_late_there_is_said_before_it_fires_here(cli: Cli, words: tuple[str, ...], theirs: Any) -> None:
    theirs.enqueue_at(SOON - timedelta(days=2), BY_PATH, job_id="late", timeout=60)
    assert "1 of them are late there: each fires once, at once" in cli(*words, "--dry-run", code=1).out
    cli(*words, "--disable-source", code=1)
    assert cli.scheduler.get("rq-scheduler:late").status == "done"


def test_one_that_is_over_here_and_scheduled_there_anew_is_told(cli: Cli, redis_url: str, theirs: Any) -> None:
    theirs.cancel("set")
    theirs.cancel("hourly")
    words = ("import", "rq-scheduler", redis_url, "--trust-source", "--disable-source")
    theirs.enqueue_at(SOON - timedelta(days=2), BY_PATH, job_id="again", timeout=60)
    assert "are over" not in cli(*words).out
    theirs.enqueue_at(SOON, BY_PATH, job_id="again", timeout=60)
    assert "1 fire at rq-scheduler alone, and ours of the same id are over: delete ours" in cli(*words).out
    cli.scheduler.get("rq-scheduler:again").delete()
    cli(*words)
    assert cli.scheduler.get("rq-scheduler:again").next_run_at == SOON


@pytest.mark.parametrize("option", [(), ("--dry-run",), ("--disable-source",), ("--source-is-stopped",)])
def test_pickles_are_refused_without_trust_before_anything_is_written(
    cli: Cli, words: tuple[str, ...], option: tuple[str, ...]
) -> None:
    told = cli(*words[:-1], *option, code=2).err
    assert "--trust-source: is missing: the source stores jobs as pickles" in told
    assert cli.ids() == []
    assert cli.scheduler.runtime.transport.redis.zcard(SCHEDULED) == 2


def test_a_source_without_anything_says_so(cli: Cli, redis_url: str) -> None:
    assert "nothing there." in cli("import", "rq-scheduler", redis_url, "--disable-source").out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("cron", "x"), "'cron' is not one of rq-scheduler, rq-cron"),
        (("rq-scheduler", "http://x"), "URL"),
        (("rq-scheduler", "redis://x", "--timezone", "CET"), "timezone"),
        (("rq-scheduler", "redis://x", "--disable-source", "--source-is-stopped"), "contradicts --disable-source"),
        (("rq-cron", "x.py"), "--trust-source: is missing"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(words: tuple[str, ...], reason: str, cli: Cli) -> None:
    assert reason in cli("import", *words, code=2).err


def test_a_file_of_rq_cron_cannot_be_disabled(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cron_config.py"
    path.write_text(
        "from rq import cron\nfrom tests.support.cli_flows import unregistered\n"
        "cron.register(unregistered, 'low', interval=60, name='often')\n"
    )
    words = ("import", "rq-cron", str(path), "--trust-source")
    assert "stop `rq cron`, then run this with --source-is-stopped" in cli(*words, "--disable-source", code=2).err
    assert cli.ids() == []
    assert "stop `rq cron`, then run this with --source-is-stopped" in cli(*words).out
    assert cli.scheduler.get("rq-cron:often").status == "paused"
    cli(*words, "--source-is-stopped")
    assert cli.scheduler.get("rq-cron:often").status == "active"


def test_a_redis_that_does_not_answer_is_said(cli: Cli) -> None:
    assert "Error" in cli("import", "rq-scheduler", "redis://127.0.0.1:1/0", code=5).err


def test_a_source_is_read_from_the_environment_where_its_password_is_not_shown(
    cli: Cli, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_REDIS_URL", words[2])
    named = ("import", "rq-scheduler", "env:SHOP_REDIS_URL", "--trust-source")
    assert cli(*named, "-o", "json", code=1).json["kind"] == "rq-scheduler"
    assert cli.ids() == ["rq-scheduler:hourly"]
    monkeypatch.setenv("SHOP_REDIS_URL", "")
    told = cli(*named, code=2).err
    assert "SOURCE: names the environment variable SHOP_REDIS_URL, which is not set" in told


def test_what_another_namespace_has_is_refused_unless_it_came_from_another_source(
    cli: Cli, words: tuple[str, ...]
) -> None:
    cli(*words, code=1)
    told = cli(*words, "-n", "other", code=4).err
    assert "namespace 'default' has 1 of these already, such as rq-scheduler:hourly: both would fire." in told
    cli(*words, "-n", "other", "--another-source", code=1)
    assert [one.schedule_id for one in cli.scheduler.iter(namespace="other")] == ["rq-scheduler:hourly"]


def test_names_of_others_move_no_cursor(cli: Cli, words: tuple[str, ...]) -> None:
    cli.scheduler.runtime.transport.redis.zadd(SCHEDULED, {"\x1b[2Jgone": SOON.timestamp()})
    answer = cli(*words, code=1)
    assert "gone" in answer.out
    assert "\x1b" not in answer.out + answer.err


@pytest.mark.parametrize("name", ["schedules.toml", "schedules.yaml", "schedules.json"])
def test_a_file_of_the_entries_is_what_sync_reads(name: str, cli: Cli, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / name
    cli(*words, "--write", str(path), code=1)
    text = path.read_text()
    assert "Its meta is lost (who): pass it as arguments." in text
    assert "From rq-scheduler, by rqsched import." in text
    assert cli("sync", str(path), "-o", "json").json["unchanged"] == ["rq-scheduler:hourly"]
    assert cli.scheduler.get("rq-scheduler:hourly").status == "paused"
    cli(*words, "--disable-source", "--write", str(path), code=1)
    assert path.read_text() == text
    assert cli("sync", str(path), "--delete-removed", "-o", "json").json["unchanged"] == ["rq-scheduler:hourly"]
    assert cli.scheduler.get("rq-scheduler:hourly").status == "active"


def test_a_dry_run_may_write_the_file_alone(cli: Cli, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "schedules.toml"
    cli(*words, "--dry-run", "--write", str(path), code=1)
    assert cli.ids() == []
    assert cli("sync", str(path), "-o", "json").json["created"] == ["rq-scheduler:hourly"]


def test_a_file_of_no_known_form_is_refused_before_anything_is_written(cli: Cli, words: tuple[str, ...]) -> None:
    assert "must end in .toml" in cli(*words, "--write", "schedules.txt", code=2).err
    assert cli.ids() == []
