"""Pictures to work with."""
