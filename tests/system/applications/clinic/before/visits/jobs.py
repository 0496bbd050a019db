"""What workers execute."""

from __future__ import annotations

from .models import Visit


def confirm(pk: int) -> None:
    """Confirm a visit to its patient."""
    Visit.objects.filter(pk=pk).update(is_confirmed=True)
