"""What would spoil a training or its score, found in the data first: duplicates, leaks, label errors, sizes."""
