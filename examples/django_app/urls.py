"""Routes of the views."""

from django.urls import path

from . import views

urlpatterns = [
    path("digests/", views.Digests.as_view()),
    path("digests/<slug:name>/", views.Digest.as_view()),
]
