"""The files of examples/deployment, which is the folder of an application."""

from __future__ import annotations

import json
import re

from tests.support.processes import REPOSITORY

APPLICATION = REPOSITORY / "examples" / "deployment"
TOKEN = "a-token-of-32-characters-or-more"
TOKENS = json.dumps([{"name": "ops", "role": "admin", "namespaces": "*", "token": TOKEN}])
"""A valid value of `RQSCHED_TOKENS` with one token."""
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def seconds(text: str) -> float:
    """A span of time as systemd and compose write it: one number with its unit."""
    match = re.fullmatch(r"(\d+)(\w*)", text)
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2]]
