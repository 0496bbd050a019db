"""`python worker.py [QUEUES]`: repair stale links and runs, then run as an `rqsched worker`."""

import sys

from rqsched.run.pid_one import leave_first_process

if __name__ == "__main__":
    leave_first_process()  # as PID 1 of a container, before anything else is imported
    from rqsched.run.logs import LogFormat, LogLevel, begin_logging
    from rqsched.run.worker import serve

    begin_logging(LogLevel.INFO, LogFormat.TEXT)
    sys.exit(serve(sys.argv[1:] or ["default"]))
