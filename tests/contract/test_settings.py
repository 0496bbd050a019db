"""The settings users write: what is read, what is refused, and that no secret leaks through a message."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from rq.serializers import resolve_serializer

from rqsched import RetryPolicy, Scheduler, config
from rqsched.config import Settings, export, provide
from rqsched.errors import ConfigError
from rqsched.store.database import make_engine

SECRET = "hunter2"

REFUSED = {
    "a database of another kind": ("DATABASE_URL", f"mysql://u:{SECRET}@h/d"),
    "a pooler of a kind we do not know": ("DATABASE_POOLER", "session"),
    "a pooler before SQLite": ("DATABASE_POOLER", "transaction"),
    "a Redis URL without scheme": ("REDIS_URL", f"{SECRET}@localhost"),
    "connections that are not JSON": ("CONNECTIONS", f"{{eu: {SECRET}}}"),
    "connections that are a list": ("CONNECTIONS", f'["{SECRET}"]'),
    "a connection that is not a Redis URL": ("CONNECTIONS", f'{{"eu": "http://{SECRET}@h"}}'),
    "a file instead of a module": ("IMPORTS", "billing/jobs.py"),
    "a broken list of modules": ("IMPORTS", '["billing"'),
    "a queue name with a space": ("CONTROL_QUEUE", "my queue"),
    "an unknown serializer": ("SERIALIZER", "yaml"),
    "a queue with an unknown serializer": ("QUEUE_SERIALIZERS", '{"default": "yaml"}'),
    "tokens that are not a list": ("TOKENS", f'{{"token": "{SECRET}"}}'),
    "tokens that are not JSON": ("TOKENS", SECRET),
    "a span that is not a number": ("GRACE", "soon"),
    "a span below zero": ("GRACE", "-1"),
    "heartbeats slower than reconcile": ("HEARTBEAT_INTERVAL", "15"),
    "an empty batch": ("FIRE_BATCH", "0"),
    "a batch that is not a number": ("FIRE_BATCH", "many"),
    "neither true nor false": ("SENTRY_CHECKINS", "perhaps"),
    "a span of nothing": ("LEASE", "0"),
    "a proxy that is no address": ("TRUSTED_PROXIES", f"10.0.0.0/8, {SECRET}"),
    "a host of notifications with a path": ("NOTIFICATION_HOSTS", "hooks.example.com, hc-ping.com/path"),
    "every host of notifications": ("NOTIFICATION_HOSTS", "*"),
    "a proxy with a port": ("TRUSTED_PROXIES", "10.0.0.1:80"),
    "every proxy": ("TRUSTED_PROXIES", "*"),
    "a network with the bits of a host": ("TRUSTED_PROXIES", "10.0.0.1/8"),
    "a retention without a unit": ("RETENTION", "90 days"),
    "an abbreviation of a timezone": ("TIMEZONE", "CEST"),
    "retries that are a number": ("RETRY", "3"),
    "retries that are not JSON": ("RETRY", f"max_retries={SECRET}"),
    "retries with a field that is not known": ("RETRY", '{"retries": 3}'),
    "retries with a delay below zero": ("RETRY", '{"base": "-1s"}'),
    "retries of targets that say what follows a run": ("TARGET_RETRY", '{"then": "dead"}'),
    "a workflow that is no name": ("ON_FAILURE", "alert the team"),
}

ACCEPTED = {
    "modules by comma and space": ("IMPORTS", "a.b, c d", ("a.b", "c", "d")),
    "modules as JSON": ("IMPORTS", '["a.b", "c"]', ("a.b", "c")),
    "an empty value is not given": ("CONTROL_QUEUE", "", "rqsched"),
    "a number": ("FIRE_BATCH", "50", 50),
    "true": ("SENTRY_CHECKINS", "Yes", True),
    "a span that may be zero": ("REDIS_BREAKER", "0", timedelta(0)),
    "seconds": ("COMPLETION_OUTAGE", "0.5", timedelta(seconds=0.5)),
    "named connections": ("CONNECTIONS", '{"eu": "valkey://eu:1/0"}', {"eu": "redis://eu:1/0"}),
    "a retention": ("RETENTION", "P30D, 500", "30d 500"),
    "no end of retention": ("RETENTION", "0", "0"),
    "proxies": ("TRUSTED_PROXIES", "127.0.0.1, ::1 10.0.0.0/8", ("127.0.0.1", "::1", "10.0.0.0/8")),
    "a proxy over a UNIX socket": ("TRUSTED_PROXIES", "unix", ("unix",)),
    "hosts of notifications": (
        "NOTIFICATION_HOSTS",
        "hc-ping.com *.a.io [::7]:8080",
        ("hc-ping.com", "*.a.io", "[::7]:8080"),
    ),
    "SQLite": ("DATABASE_URL", "sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    "a timezone": ("TIMEZONE", "Europe/Berlin", "Europe/Berlin"),
    "retries": ("RETRY", '{"base": "30s", "cap": null}', RetryPolicy(base=timedelta(seconds=30))),
    "retries of targets": ("TARGET_RETRY", '{"factor": 3}', RetryPolicy(max_retries=0, factor=3)),
    "a workflow": ("ON_RECOVERY", "shop.alerts.calm", "shop.alerts.calm"),
}


@pytest.mark.parametrize(("variable", "value"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_setting_is_refused_by_name_and_without_its_value(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RQSCHED_{variable}", value)

    with pytest.raises(ConfigError) as refused:
        Settings()

    assert f"RQSCHED_{variable}" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(("variable", "value", "expected"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_setting_is_read_from_the_environment(
    variable: str, value: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"RQSCHED_{variable}", value)

    assert getattr(Settings(), variable.lower()) == expected


def test_keyword_arguments_win_over_the_environment_and_none_means_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_CONTROL_QUEUE", "from-environment")
    monkeypatch.setenv("RQSCHED_NAMESPACE", "from-environment")

    settings = Settings(control_queue="from-keyword", namespace=None)

    assert (settings.control_queue, settings.namespace) == ("from-keyword", "from-environment")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_is_always_reached_through_psycopg_3(scheme: str) -> None:
    settings = Settings(database_url=f"{scheme}://u:{SECRET}@h/d", redis_url="redis://h:6379/0")

    assert settings.database_url == f"postgresql+psycopg://u:{SECRET}@h/d"
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("scheme", "words"),
    {
        "postgresql+asyncpg": "psycopg 3, whatever your application uses; write postgresql:// .*sslmode=require",
        "postgres+psycopg2": "psycopg 3, whatever your application uses; write postgresql://",
        "sqlite+aiosqlite": "with Python's sqlite3; write sqlite:///",
        "mysql+pymysql": "write postgresql://USER:PASSWORD@HOST:5432/DATABASE or sqlite:///PATH",
    }.items(),
)
def test_url_of_another_driver_is_refused_with_what_to_write(scheme: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        Settings(database_url=f"{scheme}://u:{SECRET}@h/d", redis_url="redis://h:6379/0")

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("option", ["ssl=require", "async_fallback=true"])
def test_option_that_only_another_driver_knows_is_refused_before_anything_is_connected(option: str) -> None:
    url = f"postgresql://u:{SECRET}@h/d?{option}"

    with pytest.raises(ConfigError, match=r"RQSCHED_DATABASE_URL cannot be used: .* options of libpq") as refused:
        Scheduler(database_url=url, redis_url="redis://h:6379/0")

    assert SECRET not in str(refused.value)


def test_options_of_libpq_and_psycopg_stand_behind_the_url() -> None:
    hosts = "host=h1:5432&host=h2:5433&target_session_attrs=read-write"
    url = f"postgresql+psycopg://u:{SECRET}@/d?{hosts}&sslmode=require&application_name=x&prepare_threshold=5"

    assert make_engine(url).url.query["sslmode"] == "require"


def test_postgres_without_a_redis_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="RQSCHED_REDIS_URL is unset"):
        Settings(database_url="postgresql://h/d")


@pytest.mark.parametrize(
    ("hosts", "host", "port"),
    [("a:1,b:2", "a,b", "1,2"), ("a,b:7", "a,b", "5432,7"), ("[::1]:5,b", "::1,b", "5,5432")],
)
def test_several_hosts_as_libpq_writes_them_reach_the_driver(hosts: str, host: str, port: str) -> None:
    url = f"postgresql://u:{SECRET}@{hosts}/d?target_session_attrs=read-write"
    stored = sa.make_url(str(Settings(database_url=url, redis_url="redis://h:6379/0").database_url))

    (_, given) = stored.get_dialect()().create_connect_args(stored)

    expected = {"user": "u", "password": SECRET, "host": host, "port": port, "dbname": "d"}
    assert {**given, **expected, "target_session_attrs": "read-write"} == given


def test_a_redis_url_without_a_database_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RQSCHED_REDIS_URL", f"redis://:{SECRET}@h:6379/0")

    with pytest.raises(ConfigError, match="RQSCHED_DATABASE_URL is unset; set it too") as refused:
        Settings()

    assert SECRET not in str(refused.value)


def test_a_redis_may_be_a_socket() -> None:
    settings = Settings(database_url="sqlite:////tmp/x.db", redis_url="unix:///run/valkey.sock?db=1")

    assert settings.redis_url == "unix:///run/valkey.sock?db=1"


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(ConfigError, match="redis is not a setting"):
        Settings(redis="redis://h:6379/0")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().namespace = "other"


@pytest.mark.parametrize("queue", ["legacy", "default"])
def test_every_queue_has_a_serializer_that_rq_can_load(queue: str) -> None:
    settings = Settings(queue_serializers={"legacy": "json"})

    name = settings.serializer_for(queue)

    paths = {"legacy": "rq.serializers.JSONSerializer", "default": "rq.serializers.DefaultSerializer"}
    assert name == paths[queue], "a path, which every version of RQ reads"
    assert resolve_serializer(name).loads(resolve_serializer(name).dumps(["x"])) == ["x"]


def test_a_misspelt_variable_is_warned_about_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RQSCHED_DATABSE_URL", f"postgresql://u:{SECRET}@h/d")
    monkeypatch.setenv("RQSCHED_COLOUR_OF_THE_SKY", "blue")

    Settings()

    told = [record.getMessage() for record in caplog.records if record.__dict__.get("action") == "unknown_setting"]
    assert told == [
        "RQSCHED_COLOUR_OF_THE_SKY is not a setting and is ignored",
        "RQSCHED_DATABSE_URL is not a setting and is ignored; did you mean RQSCHED_DATABASE_URL?",
    ]
    Settings()
    assert len([record for record in caplog.records if record.__dict__.get("action") == "unknown_setting"]) == 2


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What an application provides in this test."""
    monkeypatch.setattr(config, "_sources", [])
    values: dict[str, object] = {}
    provide(lambda: values)
    return values


def test_what_the_application_provides_yields_to_environment_and_arguments(
    provided: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    provided.update(namespace="from-application", control_queue="links", default_queue="runs", env=None)
    monkeypatch.setenv("RQSCHED_CONTROL_QUEUE", "from-environment")
    settings = Settings(default_queue="from-argument")
    read = (settings.namespace, settings.control_queue, settings.default_queue, settings.env)
    assert read == ("from-application", "from-environment", "from-argument", "")


def test_what_the_application_provides_is_read_anew_each_time(provided: dict[str, object]) -> None:
    assert Settings().namespace == "default"
    provided["namespace"] = "later"
    assert Settings().namespace == "later"


def test_what_is_exported_is_read_the_same_by_a_process_that_is_started_anew(
    provided: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    provided.update(imports=("billing", "mail"), grace=timedelta(seconds=9), connections={"eu": "redis://eu/0"})
    here = Settings()
    for name in provided:  # what is set after this is gone after the test
        monkeypatch.setenv(f"RQSCHED_{name.upper()}", "")
        monkeypatch.delenv(f"RQSCHED_{name.upper()}")
    export()
    provided.clear()
    assert Settings() == here


def test_variables_make_the_settings_of_another_process_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Settings(
        imports=("billing", "mail"),
        grace=0.5,
        sentry_checkins=True,
        fire_batch=7,
        data_dir="/tmp/here",
        connections={"eu": "redis://eu/0"},
        quotas={"*": {"schedules": 5}, "acme": {"bytes": "1MiB"}},
        retry={"max_retries": 5, "base": "30s", "then": "dead"},
        target_retry=RetryPolicy(max_retries=1),
        webhook_secret=SECRET,
    )
    for name, text in here.variables().items():
        monkeypatch.setenv(name, text)
    assert Settings() == here
    assert SECRET not in repr(here)


def test_an_invalid_value_that_the_application_provides_is_refused_by_name(provided: dict[str, object]) -> None:
    provided["fire_batch"] = 0
    with pytest.raises(ConfigError, match="RQSCHED_FIRE_BATCH"):
        Settings()
