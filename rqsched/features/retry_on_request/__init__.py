"""Retry on request: one more attempt of a failed run, when a person or `rq requeue` asks for it."""
