"""Examples that run as they are: `make demo` starts `examples.ops`; the web applications' READMEs say their commands."""
