"""Features: a folder each, with its decision, SQL, protocol, operations and surfaces. `list` has all of them."""
