"""Spans of a request, built from what the core recorded."""
