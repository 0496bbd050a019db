"""Examples that run as they are: `make demo` starts `examples.ops`."""
