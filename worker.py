"""`python worker.py [QUEUES]`: repair stale links and runs, then run as an `rqsched worker`."""

import sys

from rqsched.processes.logs import LogFormat, LogLevel, begin_logging
from rqsched.processes.worker import serve

if __name__ == "__main__":
    begin_logging(LogLevel.INFO, LogFormat.TEXT)
    sys.exit(serve(sys.argv[1:] or ["default"]))
