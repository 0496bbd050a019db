"""The users' settings: valid values, refused values, and no secret in any message."""

from __future__ import annotations

import os
import pwd
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import SecretStr
from rq.serializers import resolve_serializer

from rqsched import RetryPolicy, Scheduler, config
from rqsched.config import Settings, export, provide, secrets, variable_of
from rqsched.errors import ConfigError
from rqsched.kernel.store.database import make_engine
from tests.support.child import REPOSITORY
from tests.support.children import in_children

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
    "a span that is not a number": ("REPAIR_GRACE", "soon"),
    "a span below zero": ("REPAIR_GRACE", "-1"),
    "heartbeats slower than reconcile": ("HEARTBEAT_INTERVAL", "15"),
    "an empty batch": ("FIRE_BATCH", "0"),
    "a batch that is not a number": ("FIRE_BATCH", "many"),
    "neither true nor false": ("SENTRY_CHECKINS", "perhaps"),
    "a span of nothing": ("LINK_LEASE", "0"),
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
    "logs over http": ("LOGS_URL", f"http://logs.example.com/{SECRET}/{{run}}"),
    "logs with a user": ("LOGS_URL", f"https://{SECRET}@logs.example.com/"),
    "logs with a blank": ("LOGS_URL", "https://logs.example.com/?q={run} {job}"),
    "logs whose host is a field": ("LOGS_URL", "https://{run}.example.com/"),
    "logs with a field that is not known": ("LOGS_URL", f"https://logs.example.com/{{{SECRET}}}"),
    "logs with an open brace": ("LOGS_URL", 'https://logs.example.com/?q={"run":{run}'),
    "a workflow that is no name": ("ON_FAILURE", "alert the team"),
}

ACCEPTED = {
    "modules by comma and space": ("IMPORTS", "a.b, c d", ("a.b", "c", "d")),
    "modules as JSON": ("IMPORTS", '["a.b", "c"]', ("a.b", "c")),
    "an empty value is not given": ("CONTROL_QUEUE", "", "rqsched"),
    "a number": ("FIRE_BATCH", "50", 50),
    "true": ("SENTRY_CHECKINS", "Yes", True),
    "a span that may be zero": ("REDIS_TIMEOUT", "0", timedelta(0)),
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
    "logs": (
        "LOGS_URL",
        "https://logs.example.com:8443/#/{run}?j={job}&a={from}&b={to}&c={from_ms}&d={to_ms}",
        "https://logs.example.com:8443/#/{run}?j={job}&a={from}&b={to}&c={from_ms}&d={to_ms}",
    ),
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
    """The settings that the application provides in this test."""
    monkeypatch.setattr(config, "_sources", [])
    values: dict[str, object] = {}
    provide(lambda: values)
    return values


def test_what_the_application_provides_yields_to_environment_and_arguments(
    provided: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    provided.update(namespace="from-application", control_queue="links", default_queue="runs", environment=None)
    monkeypatch.setenv("RQSCHED_CONTROL_QUEUE", "from-environment")
    settings = Settings(default_queue="from-argument")
    read = (settings.namespace, settings.control_queue, settings.default_queue, settings.environment)
    assert read == ("from-application", "from-environment", "from-argument", "")


def test_what_the_application_provides_is_read_anew_each_time(provided: dict[str, object]) -> None:
    assert Settings().namespace == "default"
    provided["namespace"] = "later"
    assert Settings().namespace == "later"


def test_what_is_exported_is_read_the_same_by_a_process_that_is_started_anew(
    provided: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    provided.update(imports=("billing", "mail"), repair_grace=timedelta(seconds=9), connections={"eu": "redis://eu/0"})
    here = Settings()
    for name in provided:  # monkeypatch then undoes later changes of this variable after the test
        monkeypatch.setenv(f"RQSCHED_{name.upper()}", "")
        monkeypatch.delenv(f"RQSCHED_{name.upper()}")
    export()
    provided.clear()
    assert Settings() == here


def test_variables_make_the_settings_of_another_process_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Settings(
        imports=("billing", "mail"),
        repair_grace=0.5,
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


KEPT_IN_FILES = {
    "database_url": ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    "redis_url": (f"valkey://:{SECRET}@h:6379/0", f"redis://:{SECRET}@h:6379/0"),
    "connections": (f'{{"eu": "redis://:{SECRET}@eu/0"}}', {"eu": f"redis://:{SECRET}@eu/0"}),
    "tokens": ('[\n  {"name": "ci"}\n]', SecretStr('[\n  {"name": "ci"}\n]')),
    "webhook_url": (f"https://hooks.example.com/{SECRET}", f"https://hooks.example.com/{SECRET}"),
    "webhook_secret": (f" {SECRET} ", SecretStr(f" {SECRET} ")),
    "heartbeat_url": (f"https://hc-ping.com/{SECRET}", f"https://hc-ping.com/{SECRET}"),
}
"""The text for each setting that may hold a secret, and the value that results."""
TOGETHER = {"database_url": "sqlite:////tmp/x.db", "redis_url": "redis://h/0", "webhook_secret": SECRET}
"""Settings that the secrets need beside them."""
each_secret = pytest.mark.parametrize("name", KEPT_IN_FILES)


def test_every_setting_that_may_hold_a_secret_is_hidden_and_may_stand_in_a_file() -> None:
    page = (REPOSITORY / "docs" / "backup.md").read_text()
    assert secrets() == list(KEPT_IN_FILES)
    assert [name for name in secrets() if f"`{variable_of(name)}_FILE`" not in page] == []
    assert SECRET not in repr(Settings(**{name: said for name, (said, _) in KEPT_IN_FILES.items()}))


@each_secret
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_secret_is_read_from_the_file_that_its_variable_names_without_the_end_of_its_line(
    name: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, expected = KEPT_IN_FILES[name]
    (file := tmp_path / "secret").write_bytes(f"{said}{end}".encode())
    monkeypatch.setenv(f"{variable_of(name)}_FILE", str(file))

    settings = Settings(**{other: value for other, value in TOGETHER.items() if other != name})

    assert getattr(settings, name) == expected


@each_secret
def test_a_secret_is_read_from_a_credential_of_systemds_unless_a_variable_says_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, expected = KEPT_IN_FILES[name]
    others = {other: value for other, value in TOGETHER.items() if other != name}
    (tmp_path / variable_of(name)).write_text(f"{said}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert getattr(Settings(**others), name) == expected
    (tmp_path / variable_of(name)).write_text("what nobody reads")

    monkeypatch.setenv(variable_of(name), said)
    assert getattr(Settings(**others), name) == expected
    monkeypatch.delenv(variable_of(name))
    (file := tmp_path / "another").write_text(said)
    monkeypatch.setenv(f"{variable_of(name)}_FILE", str(file))
    assert getattr(Settings(**others), name) == expected


def test_a_variable_and_its_file_contradict_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "secret").write_text(f"redis://:{SECRET}@h/0")
    monkeypatch.setenv("RQSCHED_REDIS_URL_FILE", str(file))
    monkeypatch.setenv("RQSCHED_REDIS_URL", f"redis://:{SECRET}@h/0")

    with pytest.raises(ConfigError, match="RQSCHED_REDIS_URL and RQSCHED_REDIS_URL_FILE are both set") as refused:
        Settings(database_url="sqlite:////tmp/x.db")
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("RQSCHED_REDIS_URL_FILE", "")
    assert Settings(database_url="sqlite:////tmp/x.db").redis_url == f"redis://:{SECRET}@h/0", "empty is not given"


UNREADABLE = {
    "no file": (None, "does not exist; correct the path"),
    "an empty file": (b"", "is empty; write the value into it"),
    "a blank line": (b" \r\n", "is empty; write the value into it"),
    "bytes": (b"\xff\xfe", "is not text in UTF-8"),
    "more than anybody's secret": (b"x" * (1024 * 1024 + 1), "is longer than 1 MiB"),
}


@pytest.mark.parametrize(("content", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("way", ["RQSCHED_TOKENS_FILE", "CREDENTIALS_DIRECTORY"])
def test_a_file_that_holds_no_secret_is_refused_by_name(
    way: str, content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "RQSCHED_TOKENS"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(way, str(file if way == "RQSCHED_TOKENS_FILE" else tmp_path))
    if way == "CREDENTIALS_DIRECTORY" and content is None:
        assert Settings().tokens is None, "a service has credentials of its own, and not each of ours"
        return

    with pytest.raises(ConfigError, match=words) as refused:
        Settings()
    assert str(file) in str(refused.value)


def test_a_folder_and_a_pipe_in_place_of_a_file_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (tmp_path, pipe):
        monkeypatch.setenv("RQSCHED_TOKENS_FILE", str(path))
        with pytest.raises(ConfigError, match=f"{path}, which is not a regular file"):
            Settings()


@pytest.mark.parametrize("way", ["RQSCHED_TOKENS_FILE", "CREDENTIALS_DIRECTORY"])
def test_a_file_that_this_user_may_not_read_is_refused_by_name(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "closed").mkdir()
    (file := folder / "RQSCHED_TOKENS").write_text("[]")
    folder.chmod(0)
    monkeypatch.setenv(way, str(file if way == "RQSCHED_TOKENS_FILE" else folder))

    def read() -> str:
        if os.geteuid() == 0:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
        with pytest.raises(ConfigError) as refused:
            Settings()
        return str(refused.value)

    [told] = in_children(1, read)

    folder.chmod(0o700)
    assert f"{folder}/RQSCHED_" in told
    assert "cannot be read: Permission denied. Let the user of this process read it." in told


def test_what_the_application_provides_yields_to_a_file_here_and_in_processes_that_are_started_anew(
    provided: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "secret").write_text("https://hc-ping.com/of-the-file")
    (tmp_path / "RQSCHED_WEBHOOK_SECRET").write_text(SECRET)
    monkeypatch.setenv("RQSCHED_HEARTBEAT_URL_FILE", str(file))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    provided.update(heartbeat_url="https://hc-ping.com/of-the-project", webhook_secret="of the project")
    here = Settings()
    assert (here.heartbeat_url, here.webhook_secret) == ("https://hc-ping.com/of-the-file", SecretStr(SECRET))

    export()

    provided.clear()
    assert Settings() == here


def test_variables_name_no_file_of_a_secret_that_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("RQSCHED_WEBHOOK_SECRET_FILE", str(file))
    here = Settings()
    for name, text in here.variables().items():
        monkeypatch.setenv(name, text)
    assert Settings() == here
