"""Mutation: the code is broken on purpose, in a copy, and named tests must notice (docs/proofs/guarantees.md)."""
