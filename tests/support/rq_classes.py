"""Give RQ's own tests rqsched's worker classes: `rq_suite.py` copies this file beside them as their `conftest.py`."""

import multiprocessing

import rq
import rq.worker

import rqsched.rq

for _name in rqsched.rq.__all__:
    for _module in (rq, rq.worker):
        setattr(_module, _name, getattr(rqsched.rq, _name))
for _name in ("HerokuWorker", "RandomWorker", "RoundRobinWorker"):
    _base = getattr(rq.worker, _name)
    setattr(rq.worker, _name, type(_name, (_base, rqsched.rq.Worker), {"__module__": "rq.worker"}))


def pytest_unconfigure() -> None:
    """Kill the workers that a failed test left. Otherwise, this process would wait for them at its end."""
    for worker in multiprocessing.active_children():
        worker.kill()
