"""The Celery application of the comparison; pages are those of https://docs.celeryq.dev/en/stable/.

plain: userguide/periodic-tasks.html, "Entries" and "Starting the Scheduler". `relative` ("Available Fields") puts the
times on whole seconds, so that lateness can be measured; a crontab has no seconds.
hardened: userguide/configuration.html, `beat_sync_every=1`: the last run is written to the file after every task,
instead of every three minutes. userguide/tasks.html, `acks_late` and `reject_on_worker_lost`: a task is acknowledged
when it has ended. getting-started/backends-and-brokers/redis.html, "Visibility timeout": a task of a killed worker is
delivered again after a minute, instead of an hour.
redbeat: the same settings with the scheduler of https://redbeat.readthedocs.io/en/latest/config.html, whose lock
admits one active beat. With the default lock of 25 minutes, a killed beat would be missed that long, so the lock is 5 s
here: five loops, as in the default.
"""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.peers.job import note

URL = os.environ["PEERS_REDIS_URL"]
VARIANT = os.environ["PEERS_VARIANT"]

app = Celery("peers", broker=URL)
app.task(name="note")(note)
app.conf.update(
    timezone="UTC",
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    beat_schedule={"note": {"task": "note", "schedule": 5.0, "relative": True}},
)
if VARIANT != "plain":
    app.conf.update(
        beat_sync_every=1,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        broker_transport_options={"visibility_timeout": 60},
    )
if VARIANT == "redbeat":
    app.conf.update(
        beat_scheduler="redbeat.RedBeatScheduler",
        beat_max_loop_interval=1,
        redbeat_redis_url=URL,
        redbeat_redis_options={"retry_period": 60},
        redbeat_lock_timeout=5,
    )
