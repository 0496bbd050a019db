"""The scheduler and its handles, and a module of functions for each noun that surfaces read.

A module that defines nothing itself names the functions of the kernel and of features that surfaces may use. Functions
that take a connection read within one transaction: `scheduler.runtime.database.read` opens it.
"""
