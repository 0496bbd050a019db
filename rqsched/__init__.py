"""rqsched: durable, self-rescheduling schedules on RQ."""
