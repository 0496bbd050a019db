"""Routes of the views."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.visits),
]
