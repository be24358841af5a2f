"""Six answers about pets: the truth, and the probabilities that a network gave."""

from __future__ import annotations

import numpy as np

PETS = ("cat", "dog", "owl")
# Truth and probabilities: two cats right, one taken for a dog; one dog taken for a cat, surely; no owl; dogs right.
TARGETS = np.array([0, 0, 0, 1, 1, 1])
SHARES = np.array(
    [[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.3, 0.6, 0.1], [0.96, 0.02, 0.02], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]]
)
