"""When: cron expressions, intervals, one-off instants and mixtures of them, in a time zone. Pure; knows only errors."""
