"""Redis and RQ's data formats: hashes, queues, Lua scripts, the names of keys. It knows no SQL."""
