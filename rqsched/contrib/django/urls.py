"""The dashboard: `path("rqsched/", include("rqsched.contrib.django.urls"))`, for the staff of the site."""

from __future__ import annotations

from django.urls import path, re_path

from rqsched.contrib.django.views import dashboard

urlpatterns = [
    path("", dashboard, name="rqsched-dashboard"),
    re_path("^(?P<page>.+)$", dashboard),
]
