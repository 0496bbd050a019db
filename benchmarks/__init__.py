"""The costs of rqsched, each beside a peer measured in the same run. `python -m benchmarks` runs them all."""
