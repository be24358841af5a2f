"""Strangers' files opened with care: a path in, WeightContents out, before any tensor is read."""
