"""Features: a folder each, with its decision, SQL, protocol, operations and surfaces.

`list` has the features that take part at points of the kernel. Other features add operations, which call the kernel.
"""
