"""The asynchronous client and its handles: `sync` with `await`; a test holds their names and parameters together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

import httpx
import tenacity

from rqsched.api.describe import Description
from rqsched.client import http as sending
from rqsched.client import requests as asking
from rqsched.client.http import Retries
from rqsched.client.requests import Ask, Triggered
from rqsched.client.responses import BackfillProgress, RunFacts
from rqsched.core.options import Options
from rqsched.spec.spec import SpecLike
from rqsched.store.listing import MAX_PAGE, AuditRecord, Page

T = TypeVar("T")


class AsyncClient:
    """Schedules over HTTP. Belongs to one event loop; close it, or use it in an `async with`.

    Raises what the in-process API raises, AnswerError for what only HTTP knows, and BackendUnavailableError when
    nothing answers within `timeout` seconds and the retries.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        timeout: float | httpx.Timeout = sending.TIMEOUT,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect lazily. `namespace` holds for everything; None takes the server's default, or the token's own."""
        headers = sending.headers(token, namespace)
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._retries = retries or Retries()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def ask(self, ask: Ask[T]) -> T:
        """Send one Ask, again where that is safe, and give what its answer means."""
        try:
            async for attempt in tenacity.AsyncRetrying(**self._retries.options(ask)):
                with attempt:
                    response = await self._http.request(**sending.arguments(ask))
                    is_repeated = attempt.retry_state.attempt_number > 1
                    return sending.read(ask, response, is_repeated=is_repeated)
        except httpx.TransportError as error:
            raise sending.unreachable(error) from error
        raise AssertionError("tenacity raises the last error")  # pragma: no cover

    # ---- schedules

    async def create(
        self,
        schedule_id: str,
        workflow: str,
        spec: SpecLike,
        *,
        note: str | None = None,
        paused: bool = False,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> AsyncScheduleHandle:
        """Create a schedule; raises ScheduleExistsError when the id is taken. Safe to repeat: it goes under a key."""
        body = asking.declaration(workflow, spec, options, {"note": note, "paused": paused})
        return AsyncScheduleHandle(self, await self.ask(asking.create(schedule_id, body, idempotency_key)))

    async def upsert(
        self,
        schedule_id: str,
        workflow: str,
        spec: SpecLike,
        *,
        note: str | None = None,
        paused: bool | None = None,
        **options: Unpack[Options],
    ) -> tuple[AsyncScheduleHandle, str]:
        """Create a schedule or make the known one what is declared; also says `created`, `updated` or `unchanged`."""
        body = asking.declaration(workflow, spec, options, {"note": note, "paused": paused})
        found, outcome = await self.ask(asking.upsert(schedule_id, body))
        return AsyncScheduleHandle(self, found), outcome

    async def get(self, schedule_id: str) -> AsyncScheduleHandle:
        """Find a schedule that is not deleted; raises ScheduleNotFoundError."""
        return AsyncScheduleHandle(self, await self.ask(asking.get(schedule_id)))

    def handle(self, schedule_id: str) -> AsyncScheduleHandle:
        """Give a handle without asking: for the history and runs of a schedule that may be deleted."""
        return AsyncScheduleHandle(self, None, schedule_id)

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        labels: Mapping[str, str] | None = None,
        owner: str | None = None,
        text: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AsyncScheduleHandle]:
        """Read a page (1 to 500) of schedules in the order they were created."""
        filters = {"status": status, "workflow": workflow, "labels": labels, "owner": owner, "text": text}
        page = await self.ask(asking.listed({**filters, "limit": limit, "cursor": cursor}))
        return Page([AsyncScheduleHandle(self, found) for found in page.items], page.next_cursor)

    async def iter(self, **filters: Any) -> AsyncIterator[AsyncScheduleHandle]:
        """Read all schedules that `list` with these filters shows, page by page."""
        cursor: str | None = None
        while True:
            page = await self.list(limit=MAX_PAGE, cursor=cursor, **filters)
            for found in page.items:
                yield found
            cursor = page.next_cursor
            if cursor is None:
                return

    async def count(self, **filters: Any) -> int:
        """Count the schedules that `list` with these filters shows in all."""
        return await self.ask(asking.count(filters))

    async def batch_delete(self, schedule_ids: Sequence[str]) -> None:
        """Delete up to 500 schedules; those that are not there are passed over."""
        await self.ask(asking.batch_delete(schedule_ids))

    async def workflows(self) -> Sequence[dict[str, Any]]:
        """Read which workflows may be named, with their defaults."""
        return await self.ask(asking.workflows())

    async def backfill(self, uid: str) -> BackfillProgress:
        """Read how far a backfill is; raises BackfillNotFoundError."""
        return await self.ask(asking.backfill_progress(uid))


class AsyncRunHandle:
    """One run: its facts as they were read, and what one may do to it."""

    def __init__(self, client: AsyncClient, schedule_id: str, facts: RunFacts) -> None:
        self._client = client
        self._schedule_id = schedule_id
        self.facts = facts

    def __repr__(self) -> str:
        return f"<Run {self.facts.instance_id} {self.status}>"

    @property
    def uid(self) -> str:
        """The run's uid."""
        return self.facts.uid

    @property
    def status(self) -> str:
        """The run's status as it was read."""
        return self.facts.status

    async def refresh(self) -> AsyncRunHandle:
        """Read the run again."""
        self.facts = await self._client.ask(asking.run(self._schedule_id, self.uid))
        return self

    async def cancel(self) -> AsyncRunHandle:
        """End the run: a waiting one never starts, a running one sees it at its next checkpoint. Idempotent."""
        return await self._end("cancel")

    async def terminate(self) -> AsyncRunHandle:
        """End the run and have its process killed. Idempotent."""
        return await self._end("terminate")

    async def _end(self, operation: str) -> AsyncRunHandle:
        self.facts = await self._client.ask(asking.end_run(self._schedule_id, self.uid, operation))
        return self


class AsyncScheduleHandle:
    """One schedule by its id: its description as it was read last, and everything one may do to it."""

    def __init__(self, client: AsyncClient, found: Description | None, schedule_id: str = "") -> None:
        self._client = client
        self._found = found
        self.schedule_id = found.schedule_id if found else schedule_id

    def __repr__(self) -> str:
        return f"<Schedule {self.schedule_id} {self._found.status if self._found else 'unread'}>"

    @property
    def description(self) -> Description:
        """What was read last; raises LookupError when nothing was."""
        if self._found is None:
            raise LookupError("nothing was read of it yet; await describe() first")
        return self._found

    @property
    def uid(self) -> str:
        """The incarnation."""
        return self.description.uid

    @property
    def status(self) -> str:
        """`active`, `paused`, `done`, `dead` or `deleted`, as it was read."""
        return self.description.status

    @property
    def next_run_at(self) -> datetime | None:
        """The nominal time of the next occurrence, as it was read."""
        return self.description.next_run_at

    async def _keep(self, ask: Ask[Description]) -> AsyncScheduleHandle:
        self._found = await self._client.ask(ask)
        return self

    async def describe(self) -> Description:
        """Read everything there is to know about the schedule now; raises ScheduleNotFoundError."""
        self._found = found = await self._client.ask(asking.get(self.schedule_id))
        return found

    async def update(
        self,
        workflow: str | None = None,
        spec: SpecLike | None = None,
        *,
        note: str | None = None,
        if_version: int | None = None,
        **options: Unpack[Options],
    ) -> AsyncScheduleHandle:
        """Change what is given and leave the rest; raises VersionConflictError when `if_version` does not hold."""
        match = None if if_version is None else f'"{self.uid}.{if_version}"'
        body = asking.changes(workflow, spec, options, {"note": note})
        return await self._keep(asking.update(self.schedule_id, body, match))

    async def pause(self, note: str | None = None, *, reason: str | None = None) -> AsyncScheduleHandle:
        """Stop firing; raises ScheduleStateError unless active."""
        return await self._keep(asking.change(self.schedule_id, "pause", {"note": note, "reason": reason}))

    async def resume(self, catch_up: str | None = None, *, note: str | None = None) -> AsyncScheduleHandle:
        """Fire again; raises ScheduleStateError unless paused."""
        return await self._keep(asking.change(self.schedule_id, "resume", {"catch_up": catch_up, "note": note}))

    async def restart(self, *, note: str | None = None) -> AsyncScheduleHandle:
        """Revive a done or dead schedule; raises ScheduleStateError in any other status."""
        return await self._keep(asking.change(self.schedule_id, "restart", {"note": note}))

    async def delete(self, *, purge: bool = False, reason: str | None = None) -> None:
        """Delete softly: the id is free again, history stays unless purged."""
        await self._client.ask(asking.delete(self.schedule_id, purge=purge, reason=reason))

    async def trigger(
        self, overlap: str | None = None, *, force: bool = False, idempotency_key: str | None = None
    ) -> Triggered:
        """Start a run now as the overlap policy allows. Safe to repeat: it goes under a key."""
        return await self._client.ask(
            asking.trigger(self.schedule_id, {"overlap": overlap, "force": force}, idempotency_key)
        )

    async def backfill(
        self,
        start: datetime,
        end: datetime,
        *,
        overlap: str | None = None,
        dry_run: bool = False,
        bound: int = 10_000,
    ) -> BackfillProgress:
        """Fire the occurrences of [start, end) that have passed and have no run yet; a long one goes on behind."""
        return await self._client.ask(
            asking.backfill(self.schedule_id, start, end, overlap=overlap, dry_run=dry_run, bound=bound)
        )

    async def history(self, limit: int = 100, after_sequence: int = 0) -> list[AuditRecord]:
        """Read audit events (1 to 500) after a sequence, oldest first; works after delete too."""
        return await self._client.ask(asking.history(self.schedule_id, limit, after_sequence))

    async def iter_history(self, after_sequence: int = 0) -> AsyncIterator[AuditRecord]:
        """Read all audit events from a sequence on, page by page."""
        while page := await self.history(MAX_PAGE, after_sequence):
            for event in page:
                yield event
            after_sequence = page[-1].sequence

    async def runs(
        self, limit: int = 100, cursor: str | None = None, statuses: Sequence[str] = ()
    ) -> Page[AsyncRunHandle]:
        """Read a page of runs, newest first."""
        page = await self._client.ask(asking.runs(self.schedule_id, limit, cursor, statuses))
        return Page([AsyncRunHandle(self._client, self.schedule_id, facts) for facts in page.items], page.next_cursor)

    async def run(self, run: str) -> AsyncRunHandle:
        """Find one run by uid, number or instance id; raises RunNotFoundError."""
        return AsyncRunHandle(self._client, self.schedule_id, await self._client.ask(asking.run(self.schedule_id, run)))

    async def upcoming(self, count: int = 5) -> list[datetime]:
        """Name the next instants (1 to 1000) at which it fires."""
        return await self._client.ask(asking.upcoming(self.schedule_id, count))
