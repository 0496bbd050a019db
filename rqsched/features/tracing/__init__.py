"""Tracing: OpenTelemetry spans for operations, fires and attempts."""
