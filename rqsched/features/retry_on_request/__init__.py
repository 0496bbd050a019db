"""Retry on request: another attempt of a failed run, asked for by a person or by `rq requeue`."""
