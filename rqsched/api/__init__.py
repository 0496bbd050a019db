"""The scheduler and its handles, and a module of functions for each noun that surfaces read.

Some modules define nothing themselves: they list the functions of the kernel and of features that surfaces may use. A
function that takes a connection reads within one transaction, which `scheduler.runtime.database.read` opens.
"""
