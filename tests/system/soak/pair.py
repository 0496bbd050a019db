"""A primary and the standby that follows it, in two places whose addresses stay: one URL reaches whichever is right."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from tests.support import servers
from tests.support.processes import wait_until
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import PostgresServer, free_port

DATABASE = "soak"


class Pair:
    """Two servers inside the block."""

    def __enter__(self) -> Pair:
        """The standby follows."""
        first = ExitStack()
        self.primary: PostgresServer = first.enter_context(servers.postgres())
        self._ports = self.primary.port, free_port()
        self._places = {self.primary.port: first}
        self.follow()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Both are gone."""
        for place in self._places.values():
            place.close()

    @property
    def url(self) -> str:
        """The URL of whichever of the two takes writes."""
        hosts = "&".join(f"host=127.0.0.1:{port}" for port in self._ports)
        return f"postgresql+psycopg://postgres@/{DATABASE}?{hosts}&target_session_attrs=read-write"

    def follow(self) -> None:
        """A new standby follows the primary, in the other place, over a link that can be silenced."""
        (port,) = set(self._ports) - {self.primary.port}
        if (before := self._places.pop(port, None)) is not None:
            before.close()
        place = self._places[port] = ExitStack()
        self.link: Proxy = place.enter_context(proxy_to(self.primary.url(DATABASE)))
        standby = servers.standby_of(self.primary, port=port, through=self.link.port)
        self.standby: PostgresServer = place.enter_context(standby)
        wait_until(lambda: self._replication() == "async", what="a standby that follows")

    def confirm_by_standby(self) -> None:
        """A commit is confirmed from now on when the standby has it, too."""
        for statement in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            self.primary.execute(statement)
        wait_until(lambda: self._replication() == "sync", what="a synchronous standby")

    def cut_off_standby(self) -> None:
        """Nothing reaches the standby any more, and it does not learn why."""
        self.link.is_silent = True
        self.link.swallow()

    def promote(self) -> PostgresServer:
        """The primary dies, and the standby takes its part; returns the one that died."""
        old = self.primary
        old.kill()
        self.standby.execute("SELECT pg_promote()")
        self.primary = self.standby
        return old

    def _replication(self) -> object:
        with self.primary.connect() as connection:
            row = connection.execute("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'").fetchone()
        return None if row is None else row[0]
