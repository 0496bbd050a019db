"""Visits."""

from django.db import models


class Visit(models.Model):
    """A visit of a patient."""

    id = models.BigAutoField(primary_key=True)
    patient = models.CharField(max_length=100)
    is_confirmed = models.BooleanField(default=False)
    reminders = models.IntegerField(default=0)
