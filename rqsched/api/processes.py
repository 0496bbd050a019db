"""The reports of processes in Redis."""

from rqsched.kernel.transport.telemetry import PRUNED as PRUNED
from rqsched.kernel.transport.telemetry import LiveDispatcher as LiveDispatcher
from rqsched.kernel.transport.telemetry import LiveRqWorker as LiveRqWorker
from rqsched.kernel.transport.telemetry import live_dispatchers as live_dispatchers
from rqsched.kernel.transport.telemetry import live_workers as live_workers
from rqsched.kernel.transport.telemetry import read_passes as read_passes
from rqsched.kernel.transport.telemetry import registered_workers as registered_workers
