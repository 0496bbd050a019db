"""SQL: all tables and migrations, and functions that are each a step of a transaction; features have `store.py`."""
