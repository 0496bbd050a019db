"""The names of our keys in Redis. They are API, and docs/architecture.md lists them.

RQ names the list, the scheduled set and the hashes of its jobs itself.
"""

from __future__ import annotations


def wake(queue: str) -> str:
    """Return the key of the list that dispatchers block on."""
    return f"rqsched:wake:{queue}"


def first_look(queue: str) -> str:
    """Return the key that names the dispatcher that looks first when something is due; the others look later."""
    return f"rqsched:first-look:{queue}"


def database_id(queue: str) -> str:
    """Return the key that holds the id of the database that the queue belongs to; it is missing after a flush."""
    return f"rqsched:epoch:{queue}"


def identity(queue: str) -> str:
    """Return the key that holds the identity of the PostgreSQL server whose database the queue belongs to."""
    return f"rqsched:server:{queue}"


def identity_seen(queue: str) -> str:
    """Return the key with the time of the last pass by a process of the recorded server, in Redis's Unix seconds."""
    return f"rqsched:server-seen:{queue}"


def identity_heir(queue: str) -> str:
    """Return the key with the time since which another server waits to take over the queue."""
    return f"rqsched:server-heir:{queue}"


def flush_marker(queue: str, uid: str) -> str:
    """Return the key that is set during one full pass of reconcile, and that a flush removes."""
    return f"{database_id(queue)}:{uid}"


def freeze(queue: str) -> str:
    """Return the key of the hash of freezes. While it has the field `*`, everything is frozen."""
    return f"rqsched:hold:{queue}"


def reconcile_interval(queue: str) -> str:
    """Return the key that exists from the beginning of a reconcile pass until the next pass is due."""
    return f"rqsched:reconcile:{queue}"


def marks(queue: str, database_id: str) -> str:
    """Return the key of the list of a database's newest marks, which show whether the database or Redis went back."""
    return f"rqsched:marks:{queue}:{database_id}"


def pruning_interval(queue: str) -> str:
    """Return the key that exists from the beginning of a pruning until the next pruning is due."""
    return f"rqsched:prune:{queue}"


def dispatchers(queue: str) -> str:
    """Return the key of the set that names the queue's dispatchers."""
    return f"rqsched:dispatchers:{queue}"


def dispatcher(queue: str, name: str) -> str:
    """Return the key that exists while one dispatcher is alive."""
    return f"rqsched:dispatcher:{queue}:{name}"


def dispatcher_waits(queue: str, name: str) -> str:
    """Return the key with the error because of which one dispatcher waits. It exists while the dispatcher waits."""
    return f"rqsched:dispatcher-waits:{queue}:{name}"


def foreign_workers(database_id: str) -> str:
    """Return the key of the set of workers that got jobs of another database than their own."""
    return f"rqsched:foreign-workers:{database_id}"


def damaged_runners() -> str:
    """Return the key of the hash that names the runners that were damaged lately, and the reasons."""
    return "rqsched:damaged-runners"


def refused(job: str) -> str:
    """Return the key that remembers that a worker with another database refused a job."""
    return f"rqsched:refused:{job}"


def passes(queue: str) -> str:
    """Return the key of the hash with the sums over all reconcile passes."""
    return f"rqsched:tally:{queue}"


def write_probe(queue: str) -> str:
    """Return the key that is written to see whether Redis takes writes; nothing reads it, and it expires."""
    return f"rqsched:write-probe:{queue}"


def disabled_entries(kind: str) -> str:
    """Return the key, in another scheduler's Redis, of the entries that an import removed from that scheduler."""
    return f"rqsched:disabled:{kind}"
