"""What rqsched executes."""

from __future__ import annotations

from django.db.models import F

from rqsched import workflow

from .models import Visit


@workflow("remind")
def remind(pk: int) -> None:
    """Remind a patient of a visit."""
    Visit.objects.filter(pk=pk).update(reminders=F("reminders") + 1)
