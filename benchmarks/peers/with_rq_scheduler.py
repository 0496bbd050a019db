"""rq-scheduler, as its README recommends; run as a script, this module schedules the job.

plain: README, "Cron Jobs" and "Running the scheduler", with `--interval 1` because the default looks once a minute.
hardened: README, "Running Multiple Schedulers": two of them.

The README's expressions have minutes. The package `crontab`, which reads them, also takes seconds as the first of seven
fields. The id is ours: without one, each deployment would add another job.
"""

from __future__ import annotations

import os

from redis import Redis
from rq_scheduler import Scheduler  # type: ignore[import-untyped]

from benchmarks.peers.job import note

if __name__ == "__main__":
    Scheduler(connection=Redis.from_url(os.environ["PEERS_REDIS_URL"])).cron("*/5 * * * * * *", func=note, id="note")
