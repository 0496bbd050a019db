"""Views that create and show schedules."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import View

from rqsched import Every
from rqsched.contrib.django import scheduler
from rqsched.errors import InvalidInputError, RqschedError

from .schedules import send_digest


class DigestForm(forms.Form):
    """The subscriber's form."""

    name = forms.SlugField()
    to = forms.EmailField()
    every = forms.CharField()

    def clean_every(self) -> Every:
        """Read the interval; a refusal of rqsched becomes an error of this field."""
        try:
            return Every(self.cleaned_data["every"])
        except InvalidInputError as error:
            raise forms.ValidationError(error.reason) from error


class Answering(View):
    """A view that answers rqsched's errors with their statuses."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer 404 for a subscription that does not exist, 503 while a backend is away, and so on."""
        try:
            return super().dispatch(request, *args, **kwargs)
        except RqschedError as error:
            return JsonResponse({"error": str(error)}, status=error.http_status)


class Digests(Answering):
    """All digests."""

    def post(self, request: HttpRequest) -> HttpResponse:
        """Subscribe, or change a subscription."""
        form = DigestForm(request.POST)
        if not form.is_valid():
            return JsonResponse({"errors": form.errors}, status=422)
        wanted = form.cleaned_data
        schedule, outcome = scheduler.upsert(
            f"digest:{wanted['name']}", send_digest, wanted["every"], args=[wanted["to"]]
        )
        status = 201 if outcome == "created" else 200
        return JsonResponse({"outcome": outcome, "next_at": schedule.next_run_at}, status=status)


class Digest(Answering):
    """One digest."""

    def get(self, _: HttpRequest, name: str) -> HttpResponse:
        """Show when the next digest is due, and the latest ones."""
        schedule = scheduler.get(f"digest:{name}")
        runs = [{"status": run.status, "result": run.result} for run in schedule.runs(limit=5).items]
        return JsonResponse({"next_at": schedule.next_run_at, "runs": runs})

    def delete(self, _: HttpRequest, name: str) -> HttpResponse:
        """Unsubscribe."""
        scheduler.get(f"digest:{name}").delete()
        return HttpResponse(status=204)
