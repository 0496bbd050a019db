"""Coming over: what other systems schedule, read from where they keep it and written as schedules of ours."""
