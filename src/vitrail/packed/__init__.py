"""Our CPU runtime: a checkpoint packed for oneDNN, the same answers faster. Known to nobody but who opens it."""
