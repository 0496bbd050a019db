"""Shuffled worlds: the real store and chain on SQLite, over a network and a crew that misbehave as a seed says."""
