"""Compute when schedules fire: cron expressions, intervals and single instants. This package imports only `errors`."""
