"""Tracing: spans of operations, fires and attempts through OpenTelemetry."""
