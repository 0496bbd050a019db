"""APScheduler 3 in a process of its own; the page is https://apscheduler.readthedocs.io/en/3.x/userguide.html.

plain: "Choosing the right scheduler": BlockingScheduler and the default job store, which is in memory.
hardened: the same section recommends SQLAlchemyJobStore on PostgreSQL; "Adding jobs" demands an explicit id; "Missed
job executions and coalescing" describes the two other options. The page also has `replace_existing=True` for jobs that
are added at each start. That would compute the next time anew and forget missed times, so the job is only added once.
"""

from __future__ import annotations

import os
import threading

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger

JOB = "benchmarks.peers.job:note"
EVERY = CronTrigger(second="*/5", timezone="UTC")


def run_plain() -> None:
    scheduler = BlockingScheduler(timezone="UTC")
    scheduler.add_job(JOB, EVERY)
    scheduler.start()


def run_hardened() -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_jobstore("sqlalchemy", url=os.environ["PEERS_DATABASE_URL"])
    scheduler.start(paused=True)
    if scheduler.get_job("note") is None:
        scheduler.add_job(JOB, EVERY, id="note", misfire_grace_time=None, coalesce=True)
    scheduler.resume()
    threading.Event().wait()


if __name__ == "__main__":
    {"plain": run_plain, "hardened": run_hardened}[os.environ["PEERS_VARIANT"]]()
