"""A declared set of schedules: the requests that bring it about, and the part of each client that sends them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rqsched.client import requests
from rqsched.client.requests import Request
from rqsched.client.responses import Synced
from rqsched.errors import InvalidInputError

if TYPE_CHECKING:
    from rqsched.api.declarations import Declaration

Progress = Callable[[str, str], None]
"""Called with each id and its outcome."""


class Syncing:
    """The part of a Client that makes the stored schedules what is declared."""

    def sync(
        self: Any, declarations: Iterable[Declaration], *, prune: bool = False, progress: Progress | None = None
    ) -> Synced:
        """Upsert a declared set; with `prune`, delete what an earlier sync made and this set lacks.

        All of it is checked, here and by the server, before anything is written. A large set is sent in several
        requests; when one fails, what came before is done, and the same call again does the rest. `progress` is called
        with each id and its outcome.
        """
        parts = sync_requests(declarations, prune=prune)
        for rehearsal in rehearsals(parts):
            self.send(rehearsal)
        return Synced.joined([told(self.send(part), progress) for part in parts])

    def preview_sync(self: Any, declarations: Iterable[Declaration], *, prune: bool = False) -> Synced:
        """Return what `sync` would do now, with the same checks; writes nothing."""
        return Synced.joined([self.send(rehearsed(part)) for part in sync_requests(declarations, prune=prune)])


class AsyncSyncing:
    """The same part of an AsyncClient."""

    async def sync(
        self: Any, declarations: Iterable[Declaration], *, prune: bool = False, progress: Progress | None = None
    ) -> Synced:
        """Upsert a declared set, and prune what it lacks; see `Client.sync`."""
        parts = sync_requests(declarations, prune=prune)
        for rehearsal in rehearsals(parts):
            await self.send(rehearsal)
        return Synced.joined([told(await self.send(part), progress) for part in parts])

    async def preview_sync(self: Any, declarations: Iterable[Declaration], *, prune: bool = False) -> Synced:
        """Return what `sync` would do now; see `Client.preview_sync`."""
        return Synced.joined([await self.send(rehearsed(part)) for part in sync_requests(declarations, prune=prune)])


def rehearsals(parts: list[Request[Synced]]) -> list[Request[Synced]]:
    """Return what is sent first when a set takes several requests: the server checks each of them before it writes."""
    return [rehearsed(part) for part in parts] if len(parts) > 1 else []


def told(synced: Synced, progress: Progress | None) -> Synced:
    """Tell what became of each id."""
    if progress is not None:
        for schedule_id, outcome in synced.items():
            progress(schedule_id, outcome)
    return synced


def sync_requests(declarations: Iterable[Declaration], *, prune: bool) -> list[Request[Synced]]:
    """Return the requests that bring a set about, the last of which prunes; raises before anything is sent."""
    found: dict[str, dict[str, Any]] = {}
    for declared in declarations:
        if declared.schedule_id in found:
            raise InvalidInputError("schedule_id", f"{declared.schedule_id!r} is declared twice")
        if not isinstance(declared.workflow, str):
            raise InvalidInputError("workflow", "must be a registered name; a server knows no function of this process")
        when: Any = declared.spec
        more = {"note": declared.note, "paused": declared.paused}
        body = requests.declaration(declared.workflow, when, declared.options, more)
        found[declared.schedule_id] = {"schedule_id": declared.schedule_id, **body}
    if prune and len(found) > _MOST_KEPT:
        raise InvalidInputError("prune", f"takes a set of at most {_MOST_KEPT} schedules over HTTP, not {len(found)}")
    parts = list(_parts(found.values())) or [[]]
    last: dict[str, Any] = {"schedules": parts[-1]}
    here = {one["schedule_id"] for one in parts[-1]}
    keep = {"prune": True, "keep": [id_ for id_ in found if id_ not in here]} if prune else {}
    return [*(_sync({"schedules": part}) for part in parts[:-1]), _sync(last | keep)]


_MOST_KEPT = 20_000
_MOST_SENT = 200
_MOST_CHARACTERS = 256 * 1024
"""The size of one request, about: a server takes 1 MiB by default, and checks and writes one as a whole."""


def _sync(body: Mapping[str, Any]) -> Request[Synced]:
    return Request("POST", f"{requests.BASE}sync/", lambda r: Synced(**r.json()), body, is_repeatable=True)


def rehearsed(request: Request[Synced]) -> Request[Synced]:
    """Return the same request, which says what it would do and does nothing."""
    return replace(request, body={**(request.body or {}), "dry_run": True})


def _parts(bodies: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        length = len(json.dumps(body))
        if part and (len(part) == _MOST_SENT or size + length > _MOST_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(body)
        size += length
    if part:
        yield part
