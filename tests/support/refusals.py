"""Make a test's Redis refuse commands in the ways of real servers, while it still answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

Refusal = Callable[[ValkeyServer, Any], Iterator[None]]


def _readonly(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.execute_command("REPLICAOF 127.0.0.1 1")
    yield
    redis.execute_command("REPLICAOF NO ONE")


def _without_replicas(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("min-replicas-to-write", 1)
    yield
    redis.config_set("min-replicas-to-write", 0)


def _full(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    yield
    redis.config_set("maxmemory", 0)


def _without_disk(server: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("save", "1 1")
    (server.folder / "dump.rdb").mkdir()  # no file can be put in its place
    redis.set("one", 1)
    wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] != "ok", what="a snapshot that fails")
    yield
    (server.folder / "dump.rdb").rmdir()
    redis.config_set("save", "")
    wait_until(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"], what="the end of a snapshot")
    redis.config_set("stop-writes-on-bgsave-error", "no")


def _without_primary(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("replica-serve-stale-data", "no")
    redis.execute_command("REPLICAOF 127.0.0.1 1")
    yield
    redis.execute_command("REPLICAOF NO ONE")


def _busy(server: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("busy-reply-threshold", 1)
    endless = threading.Thread(target=_loop, args=(server.url,))
    endless.start()
    wait_until(lambda: _refuses(redis, "BUSY"), what="a busy Redis")
    yield
    redis.script_kill()
    endless.join()


def _loop(url: str) -> None:
    with Redis.from_url(url) as redis, suppress(RedisError):
        redis.eval("while true do end", 0)


def _loading(server: ValkeyServer, redis: Any) -> Iterator[None]:
    for number in range(6_000):
        redis.set(f"of others: {number}", bytes(2_048))
    redis.save()
    server.kill()
    usual = server.options
    server.options = (*usual, "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
    server.launch()
    wait_until(lambda: _refuses(redis, "loading"), what="a Redis that loads")
    yield
    server.kill()
    server.options = usual
    server.start()


def _refuses(redis: Any, word: str) -> bool:
    try:
        redis.ping()
    except RedisError as error:
        return word in str(error)
    return False


def _without_command(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.execute_command("ACL SETUSER default -zadd")
    yield
    redis.execute_command("ACL SETUSER default +zadd")


def _without_scripts(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.execute_command("ACL SETUSER default -@scripting")
    yield
    redis.execute_command("ACL SETUSER default +@scripting")


def _without_login(_: ValkeyServer, redis: Any) -> Iterator[None]:
    redis.config_set("requirepass", "secret")
    redis.execute_command("CLIENT KILL TYPE NORMAL SKIPME YES")
    yield
    redis.config_set("requirepass", "")


WAYS: Mapping[str, Refusal] = {
    "READONLY": _readonly,
    "NOREPLICAS": _without_replicas,
    "OOM": _full,
    "MISCONF": _without_disk,
    "MASTERDOWN": _without_primary,
    "LOADING": _loading,
    "BUSY": _busy,
    "NOPERM": _without_command,
    "NOPERM for scripts": _without_scripts,
    "NOAUTH": _without_login,
}
"""How to make a Redis refuse, by the word it refuses with; more words tell two of the same word apart."""


@contextmanager
def refusing(server: ValkeyServer, way: str) -> Iterator[str]:
    """Redis refuses in this way, and yields its word; after the block it takes everything again."""
    with Redis.from_url(server.url) as redis:
        yield from _with_word(WAYS[way](server, redis), way)


def _with_word(steps: Iterator[None], way: str) -> Iterator[str]:
    next(steps)
    try:
        yield way.partition(" ")[0]
    finally:
        next(steps, None)
