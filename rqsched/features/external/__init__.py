"""External runs: runs that workers in any language claim over HTTP."""
