"""Examples that run as they are: `make demo` starts `examples.ops`; the READMEs of the others say their commands."""
