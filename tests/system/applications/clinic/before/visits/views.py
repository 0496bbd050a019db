"""Views."""

from __future__ import annotations

import os

from django.http import HttpRequest, JsonResponse
from redis import Redis
from rq import Queue

from .jobs import confirm
from .models import Visit

queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))


def visits(request: HttpRequest) -> JsonResponse:
    """Book a visit, or list all."""
    if request.method == "POST":
        visit = Visit.objects.create(patient=request.POST["patient"])
        queue.enqueue(confirm, visit.pk)
        return JsonResponse({"id": visit.pk}, status=202)
    return JsonResponse({"visits": list(Visit.objects.values())})
