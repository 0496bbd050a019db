"""`python worker.py [QUEUES]`: repair stale links and runs, then run as an `rqsched worker`."""

import logging
import sys

from rqsched.chain.worker import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(serve(sys.argv[1:] or ["default"]))
