"""The servers and processes of one setup, under the restart policy that all setups have."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis

from benchmarks.horse import read_memory
from benchmarks.peers.count import Run
from benchmarks.peers.job import LOG
from benchmarks.peers.setups import Command, Setup
from benchmarks.processes import cpu_of
from tests.support.processes import BIN, REPOSITORY, Process, process_tree, run_to_end, start
from tests.support.servers import PostgresServer, ValkeyServer

RESTART = 1.0
"""Seconds after the end of a process until it is started again."""
STOP = 10.0
"""Seconds that a process has to end after SIGTERM."""
KIB = 1 << 10


@dataclass
class Kept:
    """A process that is started again whenever it has ended."""

    command: Sequence[str | Path]
    folder: Path
    """Its working directory, of its own as on another machine."""
    process: Process | None = None
    start_at: float = 0.0
    starts: int = 0


@dataclass
class Site:
    """The servers and processes of one setup."""

    setup: Setup
    base: Path
    peers: Path
    """The folder with the commands of the peers' environment."""
    postgres: PostgresServer | None
    redis: ValkeyServer | None = None
    environment: dict[str, str] = field(default_factory=dict)
    schedulers: list[Kept] = field(default_factory=list)
    workers: list[Kept] = field(default_factory=list)
    is_down: bool = False

    @property
    def kept(self) -> list[Kept]:
        """Return all its processes but the servers."""
        return [*self.schedulers, *self.workers]

    def begin(self, name: str) -> None:
        """Begin anew with empty servers, and start all processes."""
        self.end()
        folder = self.base / name
        folder.mkdir(parents=True)
        if self.setup.uses_redis:
            # Without options, Valkey saves snapshots now and then, and writes no append-only file.
            options = ("--appendonly", "yes" if self.setup.is_hardened else "no")
            self.redis = ValkeyServer(folder=folder, options=options)
            self.redis.start()
        self.environment = self._environment(folder)
        self.register()
        self.schedulers = [self._keep(command) for command in self.setup.schedulers]
        self.workers = [self._keep(command) for command in self.setup.workers]

    def _environment(self, folder: Path) -> dict[str, str]:
        redis = self.redis.url if self.redis else ""
        sql = self.postgres.create_database() if self.postgres else f"sqlite:///{folder}/sql.db"
        return {
            "PYTHONPATH": str(REPOSITORY),
            "TZ": "UTC",
            LOG: str(folder / "runs.log"),
            "PEERS_VARIANT": self.setup.variant,
            "PEERS_REDIS_URL": redis,
            "PEERS_DATABASE_URL": sql,
            "RQSCHED_REDIS_URL": redis,
            "RQSCHED_DATABASE_URL": sql,
            "RQSCHED_IMPORTS": "benchmarks.peers.with_rqsched",
        }

    def _words(self, command: Command) -> list[str | Path]:
        program, *rest = command
        place = BIN if self.setup.is_ours else self.peers
        return [place / program, *(word.format(redis=self.environment["PEERS_REDIS_URL"]) for word in rest)]

    def _keep(self, command: Command) -> Kept:
        folder = Path(self.environment[LOG]).parent / f"process-{time.time_ns()}"
        folder.mkdir()
        return Kept(self._words(command), folder)

    def register(self) -> None:
        """Declare the schedule, where this is a step of its own."""
        for command in self.setup.register:
            done = run_to_end([str(word) for word in self._words(command)], self.environment)
            if done.returncode:
                raise RuntimeError(done.stderr)

    def supervise(self) -> None:
        """Start what has ended, after the delay."""
        now = time.time()
        for kept in [] if self.is_down else self.kept:
            if kept.process is not None and not kept.process.is_running:
                kept.process, kept.start_at = None, now + RESTART
            if kept.process is None and now >= kept.start_at:
                log_path = kept.folder / "output.log"
                kept.process = start(kept.command, log_path=log_path, env=self.environment, cwd=kept.folder)
                kept.starts += 1

    def supervise_for(self, seconds: float) -> None:
        """Supervise for so long."""
        until = time.time() + seconds
        while time.time() < until:
            self.supervise()
            time.sleep(0.05)

    def kill(self, number: int) -> None:
        """Kill one of the schedulers, in turn, with all its children."""
        kept = self.schedulers[number % len(self.schedulers)]
        if kept.process is not None:
            kept.process.kill_tree()

    def empty_redis(self) -> None:
        """Delete all data of Redis, as an operator by mistake."""
        if self.redis is not None:
            with Redis.from_url(self.redis.url) as redis:
                redis.flushall()

    def add_scheduler(self) -> None:
        """Start one more scheduler, as on another machine."""
        self.schedulers.append(self._keep(self.setup.schedulers[0]))

    def go_down(self) -> None:
        """Kill everything: no process says goodbye."""
        self.is_down = True
        for kept in self.kept:
            if kept.process is not None:
                kept.process.kill_tree()
                kept.process = None
        for server in (self.redis, self.postgres):
            if server is not None:
                server.kill()

    def come_back(self) -> None:
        """Start the servers, then everything else."""
        for server in (self.redis, self.postgres):
            if server is not None:
                server.start()
        self.is_down = False
        self.supervise()

    def deploy(self) -> None:
        """Declare the schedule as the new release has it, then restart one process after the other."""
        self.register()
        for kept in self.kept:
            if kept.process is not None:
                kept.process.terminate(timeout=STOP)
            self.supervise_for(RESTART + 3)

    def runs(self) -> list[Run]:
        """Read what the job has written so far."""
        path = Path(self.environment[LOG])
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(began), float(due[0]) if due else None) for began, *due in map(str.split, lines)]

    def cpu(self) -> float:
        """Return the milliseconds of CPU that its processes and servers have used."""
        return cpu_of(self._pids([*self.kept, self.redis, self.postgres]))

    def memory(self) -> float:
        """Return the MiB of its processes, each with its share of what it shares; servers excluded."""
        tree = [process.pid for pid in self._pids(self.kept) for process in process_tree(pid)]
        found = 0
        for pid in tree:
            with suppress(OSError):  # a process of a run may have ended meanwhile
                found += read_memory(pid)["Pss"]
        return found / KIB

    def _pids(self, some: Sequence[Kept | ValkeyServer | PostgresServer | None]) -> list[int]:
        return [one.process.pid for one in some if one is not None and one.process is not None]

    def end(self) -> None:
        """End all processes and the Redis."""
        for kept in self.kept:
            if kept.process is not None:
                kept.process.kill_tree()
        self.schedulers, self.workers = [], []
        if self.redis is not None:
            self.redis.kill()
        self.redis = None


def versions(peers: Path, packages: Sequence[str]) -> dict[str, str]:
    """Ask the peers' environment for the versions of these packages."""
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    done = run_to_end([peers / "python", "-c", code, *packages], os.environ)
    return dict(zip(packages, done.stdout.split(), strict=True))
