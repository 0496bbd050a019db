"""What `rqsched worker` can be told, in RQ's own words, and what does not go together."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rq import SimpleWorker, Worker
from rq.worker import BaseWorker

from rqsched.errors import ConfigError
from rqsched.processes.rq_worker import PatientWorker

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_SIZE = re.compile(r"(\d+)\s*([KMG])i?B?", re.IGNORECASE)
RUNNER_JOBS = 1_000
"""After so many jobs a runner is replaced, unless another number is given: what leaks, leaks until then."""
RUNNER_BYTES = 512 << 20
"""Resident bytes beyond which it is, unless it began with more than half of them."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How an `rqsched worker` executes; `check` refuses what does not go together."""

    concurrency: int | None = None
    """How many processes execute at once, each run after run; None for one that forks for every run."""
    isolate: bool = False
    """Whether each of them forks for every run."""
    burst: bool = False
    """Whether the worker makes one pass, executes what is queued, and ends."""
    max_jobs: int | None = None
    """After so many jobs each process that takes them is replaced; in a burst it ends. None: runners after 1 000."""
    max_memory: int | None = None
    """Resident bytes beyond which a runner is replaced after its run; None: 512 MiB, or twice what it began with."""
    max_idle_time: int | None = None
    """After so many seconds without a job a process that takes them ends, and with the last of them the worker."""
    worker_class: str | None = None
    """The dotted path of the application's own subclass of RQ's Worker."""
    exception_handlers: tuple[str, ...] = ()
    """Dotted paths of RQ's exception handlers."""
    name: str | None = None
    """The worker's name at RQ; of several processes each appends its number."""

    def check(self) -> None:
        """Raise ConfigError when the options cannot be used, or not together."""
        for option in ("concurrency", "max_jobs", "max_memory", "max_idle_time"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(f"--{option.replace('_', '-')} must be at least 1.")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError("--name takes 1 to 200 of A-Z a-z 0-9 . _ : -, with a letter or digit first.")
        if self.max_memory is not None and not self.has_runners:
            raise ConfigError(
                "--max-memory bounds processes that execute run after run: give --concurrency N, without --isolate. "
                "A process that is forked for one run ends with it anyway."
            )
        if self.burst and self.max_idle_time is not None:
            raise ConfigError("--burst ends when the queues are empty, so --max-idle-time says nothing; leave one out.")
        self.find_worker_class()
        self.find_exception_handlers()

    @property
    def most_jobs(self) -> int | None:
        """After how many jobs each process that takes them ends, and is replaced; None for never."""
        return RUNNER_JOBS if self.max_jobs is None and self.has_runners else self.max_jobs

    def most_memory(self, at_start: int) -> int:
        """Return the resident bytes beyond which a runner that began with `at_start` is replaced after its run."""
        return self.max_memory or max(RUNNER_BYTES, 2 * at_start)

    @property
    def has_runners(self) -> bool:
        """Whether runs are executed one after the other in processes that live."""
        return self.concurrency is not None and not self.isolate

    def find_worker_class(self) -> type[Worker]:
        """Import the class; raises ConfigError when it is not one that `rqsched worker` can build on."""
        if self.worker_class is None:
            return Worker
        found = _import("--worker-class", self.worker_class)
        if not (inspect.isclass(found) and issubclass(found, BaseWorker)):
            raise ConfigError(f"--worker-class: {self.worker_class} is not a class of RQ's workers.")
        if issubclass(found, PatientWorker):
            raise ConfigError(
                f"--worker-class: {self.worker_class} brings a dispatcher of its own. Name the class of RQ it is made "
                f"from, or run `rq worker -w {self.worker_class}`."
            )
        if issubclass(found, SimpleWorker) or not issubclass(found, Worker):
            raise ConfigError(
                f"--worker-class: {self.worker_class} executes jobs in its own process, where nobody can end them. "
                "Give --concurrency 1 for that, and a subclass of rq.Worker."
            )
        return found

    def find_exception_handlers(self) -> list[Callable[..., Any]]:
        """Import RQ's exception handlers; raises ConfigError for one that cannot be called."""
        found = [_import("--exception-handler", path) for path in self.exception_handlers]
        for path, handler in zip(self.exception_handlers, found, strict=True):
            if not callable(handler):
                raise ConfigError(f"--exception-handler: {path} cannot be called.")
        return found

    def names(self) -> list[str | None]:
        """Return the name at RQ of each process that takes jobs; None where RQ draws one."""
        if self.concurrency is None or self.name is None:
            return [self.name] * (self.concurrency or 1)
        return [f"{self.name}-{number}" for number in range(1, self.concurrency + 1)]


def parse_size(text: str) -> int:
    """Read an amount of memory, such as `200M` or `1G`, as bytes; raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--max-memory: {text!r} is not an amount of memory; write 200M or 1G.")
    return int(match[1]) * _UNITS[match[2].upper()]


def _import(option: str, path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}: {path!r} cannot be imported ({error}); write module.name.") from error
