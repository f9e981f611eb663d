"""Measured claims, each beside its peer: one command a table."""
