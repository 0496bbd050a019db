"""Redis and RQ's data formats: ids, hashes, queues, Lua scripts. Knows no SQL."""
