"""The configuration of RQ's `rq cron`, as https://python-rq.org/docs/cron/ shows it.

plain: "Quick Start": an interval in seconds, which the page recommends below a minute. Each start of `rq cron` enqueues
such a job at once.
hardened: a cron string, whose times do not depend on when `rq cron` started. croniter, which reads it, takes seconds as
the last of six fields. The page advises nothing else that concerns these faults.
"""

from __future__ import annotations

import os

from rq import cron

from benchmarks.peers.job import note

if os.environ["PEERS_VARIANT"] == "plain":
    cron.register(note, queue_name="default", interval=5)
else:
    cron.register(note, queue_name="default", cron="* * * * * */5")
