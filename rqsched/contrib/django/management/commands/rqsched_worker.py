"""`manage.py rqsched_worker`: fire schedules and execute their runs, with Django set up."""

from __future__ import annotations

from rqsched.contrib.django.management.commands import rqsched


class Command(rqsched.Command):
    """The same as `manage.py rqsched worker`, with the same options."""

    help = "Fire schedules and execute their runs until SIGTERM or Ctrl-C; start any number of these."
    words = ("worker",)
