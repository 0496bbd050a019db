"""Refusals: errors that Redis returns. This file knows their meaning, whether they pass by themselves, and the remedy.

redis-py removes the first word of some errors and keeps it in others, and a script or a pipeline puts text around an
error. Only this file knows that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from rqsched.config import NO_CLUSTER

_WORDS: Mapping[type[Exception], str] = {
    ReadOnlyError: "READONLY",
    BusyLoadingError: "LOADING",
    OutOfMemoryError: "OOM",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    MasterDownError: "MASTERDOWN",
    ClusterDownError: "CLUSTERDOWN",
}
"""The first words that redis-py removes, by the class of the error; a subclass stands before its base."""
_PASSING = frozenset(
    {"READONLY", "NOREPLICAS", "OOM", "MISCONF", "MASTERDOWN", "LOADING", "BUSY", "CLUSTERDOWN", "NOSCRIPT", "TRYAGAIN"}
    | {"UNBLOCKED"}
)
"""The first words of errors that pass by themselves: Redis cannot execute the command now, but may later.

UNBLOCKED ends a wait for a job when the server becomes a replica.
"""
_ADVICE: Mapping[str, str] = {
    "READONLY": "Set RQSCHED_REDIS_URL to the primary, or promote this server: it is a replica.",
    "NOREPLICAS": "Start its replicas, or lower its min-replicas-to-write.",
    "OOM": "Give it more memory (maxmemory), or delete what others keep there; what SQL holds fires when there is room "
    "again.",
    "MISCONF": "Make room on its disk; its log says what it could not write. Everything continues by itself then.",
    "MASTERDOWN": "Start its primary, or set RQSCHED_REDIS_URL to the primary: this is a replica that lost it.",
    "LOADING": "Wait: it reads its data from the disk. Everything continues by itself then.",
    "BUSY": "End the script that keeps it busy (SCRIPT KILL, FUNCTION KILL), or wait for its end.",
    "CLUSTERDOWN": f"Use another Redis; {NO_CLUSTER}.",
    "NOPERM": "Give the user in RQSCHED_REDIS_URL the rights that docs/deployment.md lists (ACL SETUSER).",
    "NOAUTH": "Put the user and the password into RQSCHED_REDIS_URL: redis://USER:PASSWORD@HOST:6379/0.",
    "WRONGPASS": "Correct the user and the password in RQSCHED_REDIS_URL, or enable that user (ACL SETUSER).",
    "WRONGTYPE": "Rename or delete that key, which somebody else has written; what SQL holds is put there again.",
    "MAXCLIENTS": "Close connections of others, or raise its maxclients.",
}
_OTHER = "Look up what Redis says in its documentation; its log may say more."
_OF_PIPELINE = " of pipeline caused error: "
"""The text that redis-py puts between a command of a pipeline and its error."""
_WORD = re.compile(r"(?:(?:ERR )?Error running script .*: -|^)([A-Z][A-Z0-9_]{2,})(?= )")
"""The first word of an error. Redis 6 puts the place in the script before the word when a script fails."""
_OF_SCRIPT = re.compile(r"\.? script: (?:\w+, )?on @user_script.*$")
"""The text that says where in a script an error was raised."""


def word_of(error: BaseException) -> str:
    """Return the first word of Redis's refusal, such as READONLY; empty if Redis did not answer."""
    if isinstance(error, RedisConnectionError) and isinstance(error.__cause__, RedisError):
        return word_of(error.__cause__)  # a breaker is open because of this refusal
    text = _text_of(error)
    if isinstance(error, AuthenticationError):
        return "WRONGPASS" if "invalid" in text or "without any password" in text else "NOAUTH"
    known = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), "")
    if known or not isinstance(error, ResponseError):
        is_full = isinstance(error, RedisConnectionError) and "max number of clients" in text
        return known or ("MAXCLIENTS" if is_full else "")
    if "ACL failure in script" in text:
        return "NOPERM"
    found = _WORD.match(text)
    return found[1] if found else "ERR"


def is_refusal(error: BaseException) -> bool:
    """Return whether Redis has answered and refused the call."""
    return bool(word_of(error))


def is_transient(error: BaseException) -> bool:
    """Return whether the same command may succeed when it is tried again."""
    return word_of(error) in _PASSING or isinstance(error, RedisConnectionError | RedisTimeoutError)


def told(error: RedisError) -> str:
    """Return an error as a sentence without a full stop.

    It quotes Redis's refusal, or states that Redis does not answer.
    """
    word, text = word_of(error), _OF_SCRIPT.sub("", " ".join(_text_of(error).split())).rstrip(".")
    if text.startswith("Redis "):  # the message of a RedisAwayError is such a sentence
        return text
    if not word:
        is_outage = isinstance(error, RedisConnectionError | RedisTimeoutError)
        return f"Redis does not answer: {text}" if is_outage else f"Redis cannot be used: {text}"
    has_word = word in text or word in {"ERR", "MAXCLIENTS"}
    return f"Redis refuses: {text}" if has_word else f"Redis refuses: {word} {text}"


def briefly(error: RedisError) -> str:
    """Return the sentence of `told` without addresses and names, for a reader who may not see them."""
    word = word_of(error)
    return f"Redis refuses what it is asked ({word})" if word else "Redis does not answer"


def advice_for(error: BaseException, otherwise: str) -> str:
    """Return what to do about a refusal, or `otherwise` for any other error."""
    word = word_of(error)
    return _ADVICE.get(word, _OTHER) if word else otherwise


def _text_of(error: BaseException) -> str:
    return str(error).rpartition(_OF_PIPELINE)[2]
