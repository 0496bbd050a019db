"""SQL: all tables and migrations, and functions that are steps of a transaction. Features have `store.py`."""
