"""External runs: workers of any language claim them over HTTP."""
