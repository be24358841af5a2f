"""An evaluation of six answers, for the tests of more than one module."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.zoo import PETS, SHARES, TARGETS
from vitrail.evaluation import Evaluation, evaluation_of


@pytest.fixture
def pets() -> Evaluation:
    return evaluation_of(np.log(SHARES), TARGETS, list("abcdef"), PETS, source="zoo", split="val", reject=0.55)
