"""The URLs of the dashboard for the site's staff: `path("rqsched/", include("rqsched.contrib.django.urls"))`."""

from __future__ import annotations

from django.urls import path, re_path

from rqsched.contrib.django.views import dashboard

urlpatterns = [
    path("", dashboard, name="rqsched-dashboard"),
    re_path("^(?P<page>.+)$", dashboard),
]
