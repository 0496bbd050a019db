"""The soak: real workers on real servers while everything is killed, frozen, flushed, restarted and cut off."""
