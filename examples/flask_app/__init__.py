"""A Flask application whose users ask to be reminded."""
