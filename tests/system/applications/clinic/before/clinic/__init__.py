"""The project of a clinic."""
