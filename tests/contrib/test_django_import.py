"""A project with django-celery-beat comes over by its own manage.py: theirs stop, ours fire by its settings."""

from __future__ import annotations

import json

import pytest

from tests.contrib.conftest import SETTINGS, Project

pytestmark = pytest.mark.timeout(120)
INSTALLED = ["django.contrib.contenttypes", "django_celery_beat", "rqsched.contrib.django", "visits"]
TASKS = """
def remind(who):
    return f"reminded {who}"
"""
PREPARE = """
from django.core.management import call_command
from django_celery_beat.models import CrontabSchedule, PeriodicTask
call_command("migrate", verbosity=0)
morning, _ = CrontabSchedule.objects.get_or_create(minute="30", hour="7", timezone="Europe/Berlin")
for name, task in (("remind", "visits.tasks.remind"), ("forget", "visits.tasks.forget")):
    PeriodicTask.objects.create(name=name, task=task, crontab=morning, args='["ops"]')
"""
LOOK = """
from django_celery_beat.models import PeriodicTask
from rqsched.contrib.django import scheduler
from rqsched.testing import execute_pending
ours = scheduler.get("celery-beat:remind")
ours.trigger()
execute_pending(scheduler)
print(json.dumps({
    "theirs": [task.enabled for task in PeriodicTask.objects.order_by("name")],
    "ours": [(one.schedule_id, one.status, one.describe().timezone) for one in scheduler.iter()],
    "result": ours.runs().items[0].result,
}))
"""


def test_periodic_tasks_come_over_by_the_command_of_their_project(project: Project) -> None:
    # Where rq-scheduler is installed, too, its `crontab` hides the one of python-crontab.
    project.write("settings.py", f"from tests.importers.django_beat import load_crontab\n\nload_crontab()\n{SETTINGS}")
    project.write("visits/tasks.py", TASKS)
    project.write("visits/schedules.py", "")
    project.settings |= {"INSTALLED_APPS": INSTALLED, "MIDDLEWARE": [], "TEMPLATES": []}
    project.python(PREPARE)
    words = ("rqsched", "import", "celery-beat", "env:SHOP_DATABASE_URL")
    place = f"sqlite:///{project.folder / 'db.sqlite3'}"

    told = project.manage(*words, "--dry-run", SHOP_DATABASE_URL=place)
    assert "visits.tasks.forget has no code here (visits.tasks has no forget)" in told
    assert "visits.tasks.remind has no code here" not in told
    assert "Would be: 2 created." in told

    told = project.manage(*words, "--disable-source", SHOP_DATABASE_URL=place)
    assert "Disabled 2 periodic tasks" in told
    assert "Ours belong to" not in told, "the settings of the project say where"

    found = json.loads(project.python(LOOK).splitlines()[-1])
    assert found == {
        "theirs": [False, False],
        "ours": [
            ["celery-beat:forget", "active", "Europe/Berlin"],
            ["celery-beat:remind", "active", "Europe/Berlin"],
        ],
        "result": "reminded ops",
    }
