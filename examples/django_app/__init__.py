"""A Django project whose users subscribe to a digest by mail."""
