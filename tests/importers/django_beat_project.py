"""The program of the process of `django_beat`: the models and DatabaseScheduler of django-celery-beat."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from celery import Celery
from celery.signals import after_task_publish
from django_celery_beat import models
from django_celery_beat.schedulers import DatabaseScheduler

_SCHEDULES = {
    "interval": models.IntervalSchedule,
    "crontab": models.CrontabSchedule,
    "clocked": models.ClockedSchedule,
    "solar": models.SolarSchedule,
}
_INSTANTS = {"clocked_time", "start_time", "expires", "last_run_at", "date_changed"}
_LONGEST_WAIT = 0.3


class Project:
    """Its commands each take one argument, and return JSON."""

    def __init__(self) -> None:
        self._app = Celery("beat", broker="memory://", set_as_current=True)
        self._app.conf.result_expires = None  # no task of Celery's own
        self._sent: list[str] = []
        self._beat: DatabaseScheduler | None = None
        after_task_publish.connect(self._on_sent, weak=False)

    def create(self, tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            kind = next((kind for kind in _SCHEDULES if kind in task), None)
            if kind:
                schedule, _ = _SCHEDULES[kind].objects.get_or_create(**_read(task.pop(kind)))
                task[kind] = schedule
            models.PeriodicTask.objects.create(**_read(task))

    def rows(self, _: None) -> list[dict[str, Any]]:
        rows = models.PeriodicTask.objects.order_by("id").values()
        return [{name: _written(value) for name, value in row.items()} for row in rows]

    def save(self, argument: tuple[str, dict[str, Any]]) -> None:
        name, fields = argument
        task = models.PeriodicTask.objects.get(name=name)
        for field, value in _read(fields).items():
            setattr(task, field, value)
        task.save()

    def update(self, fields: dict[str, Any]) -> None:
        models.PeriodicTask.objects.update(**_read(fields))

    def beat(self, argument: tuple[float, int]) -> list[str]:
        seconds, most = argument
        self._sent.clear()
        self._beat = self._beat or DatabaseScheduler(app=self._app)
        end = time.monotonic() + seconds
        while time.monotonic() < end and len(self._sent) < most:
            time.sleep(max(0.0, min(self._beat.tick(), _LONGEST_WAIT)))
        return self._sent

    def _on_sent(self, headers: dict[str, Any], **others: object) -> None:
        del others
        self._sent.append(headers["periodic_task_name"])


def _read(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value) if name in _INSTANTS and value else value for name, value in fields.items()
    }


def _written(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
