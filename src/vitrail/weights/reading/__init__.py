"""Strangers' files opened with care: a path in, Contents out, before any tensor is read."""
