"""A bank's loan applications: they are reminded of, expire and are billed by schedules, each in a job of its own."""
