"""The dispatcher: leases due links (jobs that fire schedules), fires them as a batch, and waits for the next link.

Between batches it reconciles and deletes old rows. Any number of dispatchers run side by side without a leader. When a
link is due, one dispatcher looks first, so that the dispatchers do not all compete for the link. The others look a
little later, because the first dispatcher may have died. If a dispatcher is killed, only the links that it had leased
wait, until their lease ends. Other dispatchers take all other links at once.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain

from redis.exceptions import RedisError

from rqsched.errors import BackendUnavailableError, ConfigError, DatabaseUnavailableError, WrongDatabaseError
from rqsched.kernel.chain import fire
from rqsched.kernel.chain.feature import Pass, Stage
from rqsched.kernel.chain.reconcile.passes import iter_batches
from rqsched.kernel.chain.runtime import Runtime
from rqsched.kernel.decide.results import Recovered
from rqsched.kernel.transport.telemetry import DispatcherHeartbeat
from rqsched.kernel.transport.transport import NextLook

_log = logging.getLogger(__name__)

LONGEST_WAIT = 0.2
"""After this many seconds a waiting dispatcher looks for due links, even if nothing woke it, because another dispatcher
may have been woken and died."""
LATER_LOOK = 0.01
"""How many seconds after a due time the other dispatchers look. By then the first dispatcher has leased the link, or
died."""
SQLITE_BATCH = 100
"""The maximum number of links of one batch on SQLite. While a batch is written, no other process can write."""
HOUSEKEEPING_INTERVAL = timedelta(minutes=15)
"""How often one dispatcher of a control queue does the housekeeping (`Stage.HOUSEKEEPING`)."""
_ASK_SECONDS = 30
"""How often a dispatcher checks whether the housekeeping is due."""
_AFTER_FAILURE = 0.5
_FOREIGN_SECONDS = 1.0
"""How many seconds a dispatcher waits before it asks again, while the control queue belongs to another database
server."""
_TELL_SECONDS = 60.0
"""How often a dispatcher logs again that it waits for the same reason."""
_COLLECTED_AFTER = 10_000
"""After how many new objects the garbage collector of a dispatcher looks for garbage. Python's default is 700, and
2 000 from Python 3.13 on."""


class Dispatcher:
    """The loop of one dispatcher: `run` repeats `run_once`."""

    def __init__(self, runtime: Runtime, *, recover: bool = False, on_turn: Callable[[], None] = lambda: None) -> None:
        """Prepare the loop.

        `recover` makes a pass of reconcile at once, even if another process made one in this interval. `on_turn` is
        called before and after every step that may wait for SQL or Redis, so that a supervisor sees that the loop is
        not stuck.
        """
        self._runtime = runtime
        self._on_turn = on_turn
        self._is_stopping = False
        self._pass: Iterator[Recovered] | None = iter_batches(runtime) if recover else None
        self._housekeeping: Iterator[Recovered] | None = None
        self._asks_at = self._tells_at = time.monotonic()
        self._told = ""
        self._name = secrets.token_hex(8)
        self._is_woken = self._has_looked = False
        self._heartbeat = DispatcherHeartbeat(
            runtime.transport.redis,
            runtime.transport.control.name,
            runtime.now,
            environment=runtime.settings.environment,
        )
        self._in_words = f"dispatchers of {runtime.transport.name}"
        self._interval = runtime.settings.reconcile_interval
        batch = runtime.settings.fire_batch
        self._batch = min(batch, SQLITE_BATCH) if runtime.database.dialect.has_one_writer else batch

    def stop(self) -> None:
        """Finish the batch and end the loop."""
        self._is_stopping = True

    def run(self) -> None:
        """Fire and reconcile until `stop`; during an outage of SQL or Redis, wait."""
        while not self._is_stopping:
            self._on_turn()
            try:
                if not self._runtime.write_gate.is_open():
                    if self._heartbeat.was_sent:
                        self._heartbeat.stop()  # a dispatcher that cannot fire does not count as live
                    self._pause()
                    continue
                if not self._runtime.freezes.is_own:  # a frozen dispatcher does not count as live, either
                    self._heartbeat.send()
                fired = self.run_once()
                if fired < self._batch:
                    self._use_spare_time(is_idle=not fired)
            except (BackendUnavailableError, RedisError) as error:
                self._pass = self._housekeeping = None
                self._keep(error)
                self._tell(logging.WARNING, "waiting for a backend: %s", error, "backend_wait")
                self._pause()
            except WrongDatabaseError as error:
                self._wait_for_server(error)
        with contextlib.suppress(RedisError):
            self._heartbeat.stop()

    def _keep(self, error: BackendUnavailableError | RedisError) -> None:
        """Show why this dispatcher waits: write SQL's error to Redis, or Redis's refusal to SQL."""
        if isinstance(error, DatabaseUnavailableError):
            self._heartbeat.waits_for = str(error)
        if isinstance(error, RedisError):
            self._runtime.refusals.note(self._in_words, error, self._runtime.transport.keys_of(error))

    def _wait_for_server(self, error: WrongDatabaseError) -> None:
        """Wait a second, because the control queue belongs to another server. Meanwhile do not count as live."""
        self._pass = self._housekeeping = None
        self._tell(logging.ERROR, "nothing is taken: %s", error, "foreign_server")
        with contextlib.suppress(RedisError):
            if self._heartbeat.was_sent:
                self._heartbeat.stop()
        time.sleep(_FOREIGN_SECONDS)  # wakes in Redis are for the other server's dispatchers

    def _tell(self, level: int, text: str, error: Exception, action: str) -> None:
        """Log why this dispatcher waits, at once and then only once a minute, because the disk may be full."""
        if str(error) != self._told or time.monotonic() >= self._tells_at:
            self._told, self._tells_at = str(error), time.monotonic() + _TELL_SECONDS
            _log.log(level, text, error, extra={"action": action})

    def _has_written(self) -> None:
        """Note that SQL takes writes."""
        self._told = self._heartbeat.waits_for = ""

    def _use_spare_time(self, *, is_idle: bool) -> None:
        """Between batches that are not full, do one step of work that can wait.

        If there is no such work, sleep until the next link is due, a wake comes, or the longest wait is over.
        """
        if self._runtime.refusals.known:
            self._runtime.refusals.accept(self._in_words)
        if is_idle and self.reconcile_some():
            return
        if self.keep_house() or not is_idle:
            return
        transport = self._runtime.transport
        if self._runtime.freezes.is_all_frozen:
            self._is_woken = transport.wait_for_wake(LONGEST_WAIT)
            return
        look = transport.next_look(self._name, is_woken=self._is_woken)
        self._is_woken = transport.wait_for_wake(seconds_until(look, self._runtime.now().timestamp()))

    def run_until_idle(self) -> None:
        """Fire and reconcile until there is nothing more to do now; raises when a backend is away."""
        while self.run_once() or self.reconcile_some():
            continue

    def run_once(self) -> int:
        """Take one batch of due links and fire it; returns how many links were taken (none if all is frozen)."""
        transport, settings = self._runtime.transport, self._runtime.settings
        freezes = self._runtime.freezes
        if freezes.is_all_frozen or not self._has_looked:
            self._has_looked = True
            freezes.look()  # later the script LEASE reads the freeze from Redis, and each pass reads it from SQL
        if freezes.is_all_frozen:
            return 0
        ids = transport.lease(now=self._runtime.now(), lease=settings.link_lease, limit=self._batch)
        if not ids:
            if transport.is_all_frozen:
                freezes.look(is_fresh=True)
            return 0
        self._on_turn()
        fired = fire.fire(self._runtime, ids, skip_locked=True)
        self._has_written()
        self._on_turn()
        # Drop the links of a frozen namespace instead of taking them again and again. A pass arms them after the thaw.
        again = {one.id: one.again_at for one in fired if one.again_at is not None and one.outcome != "frozen"}
        transport.put_back(again)
        transport.drop([one.id for one in fired if one.id not in again])
        self.reconcile_some()
        return len(ids)

    def reconcile_some(self) -> bool:
        """Make one batch of a reconcile pass, if a pass has begun or is due; returns whether a batch was made."""
        if self._pass is None:
            with contextlib.suppress(RedisError):  # while Redis is away, no process makes a pass
                if self._runtime.transport.acquire_interval(self._interval):
                    self._pass = iter_batches(self._runtime)
        if self._pass is None:
            return False
        self._on_turn()
        try:
            next(self._pass)
        except StopIteration:
            self._pass = None
            self._has_written()
        except ConfigError as error:
            self._pass = None
            _log.error("not reconciled: %s", error, extra={"action": "foreign_database_id"})
            return False
        return True

    def keep_house(self) -> bool:
        """Make one step of housekeeping, if it has begun or is due; returns whether a step was made."""
        if self._housekeeping is None and time.monotonic() >= self._asks_at:
            self._asks_at = time.monotonic() + _ASK_SECONDS
            if self._runtime.transport.acquire_pruning(HOUSEKEEPING_INTERVAL):
                begun = Pass(is_full=False, fires_between=True)
                self._housekeeping = chain.from_iterable(self._runtime.features.sections(begun)[Stage.HOUSEKEEPING])
        if self._housekeeping is None:
            return False
        self._on_turn()
        if next(self._housekeeping, None) is None:
            self._housekeeping = None
        return True

    def _pause(self) -> None:
        try:
            self._is_woken = self._runtime.transport.wait_for_wake(_AFTER_FAILURE)
        except RedisError:
            time.sleep(_AFTER_FAILURE)


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """Let the garbage collector wait for more new objects, unless the application has told it to wait for more.

    The objects of a batch live until its end. By default, the collector looks through them again and again, and frees
    nothing. With batches of 500, this took a sixth of a dispatcher's CPU.
    """
    first, *others = gc.get_threshold()
    if 0 < first < _COLLECTED_AFTER:  # 0 turns the collector off
        gc.set_threshold(_COLLECTED_AFTER, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)


def seconds_until(look: NextLook, now: float) -> float:
    """Return how long a dispatcher waits before it looks for due links, if nothing wakes it."""
    due = LONGEST_WAIT if look.due_at is None else min(max(look.due_at - now, 0.0), LONGEST_WAIT)
    return due if look.is_first else due + LATER_LOOK
