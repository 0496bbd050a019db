"""Read the schedules of other systems, and write them as schedules of rqsched."""
