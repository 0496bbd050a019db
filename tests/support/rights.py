"""The rights of a user of Redis that the documentation calls enough."""

from __future__ import annotations

import re
from pathlib import Path

_DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"
RIGHTS = re.findall(r"^ACL SETUSER app on >PASSWORD (.+)$", _DEPLOYMENT.read_text(), re.MULTILINE)[0].split()
"""The arguments of ACL SETUSER after name and password."""
