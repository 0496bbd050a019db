"""A module that no reader may import."""

raise RuntimeError("imported")
