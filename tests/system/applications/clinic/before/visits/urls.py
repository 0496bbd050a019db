"""Where the views are."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.visits),
]
