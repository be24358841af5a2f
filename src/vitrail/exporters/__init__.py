"""export: a checkpoint to the file of another runtime, with all its use needs inside, verified. One file a target."""
