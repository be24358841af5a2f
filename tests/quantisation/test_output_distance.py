"""Distances of answers, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shipping import small
from vitrail.quantisation.output_distance import (
    changed_answers,
    distance,
    from_class_mean,
    head_of,
    head_scale,
    largest,
    typical,
)


def test_a_distance_is_a_share_of_what_counts() -> None:
    ours = np.array([[3.0, -4.0]])
    assert distance(ours, ours) == 0.0
    assert distance(ours, np.array([[3.0, -4.4]])) == pytest.approx(0.1)
    assert distance(ours, np.array([[3.5, -4.5]]), typical) == pytest.approx(0.5 / np.sqrt(12.5))
    assert distance(ours, np.array([[3.0, -4.4]]), largest, least=8.0) == pytest.approx(0.05)


def test_other_shapes_and_values_that_are_none_are_infinitely_far() -> None:
    ours = np.array([[1.0, -4.0]])
    for theirs in ([[1.0, np.nan]], [1.0, -4.0], [[np.inf, 0.0]]):
        assert distance(ours, np.array(theirs)) == np.inf
        assert distance(np.array(theirs), ours) == np.inf


def test_the_scale_of_a_head_is_the_typical_logit_of_embeddings_of_a_size() -> None:
    head = small.checkpoint().model.head
    random = np.random.default_rng(0).standard_normal((20000, 32)).astype(np.float32)
    with torch.no_grad():
        logits = head(torch.from_numpy(random)) - head.classify.bias  # type: ignore[union-attr]
    assert head_scale(head, random) == pytest.approx(typical(logits.numpy()), rel=0.02)
    assert head_scale(head, 3 * random) == pytest.approx(3 * head_scale(head, random))
    assert head_scale(small.checkpoint(classes=0).model.head, random) == 0.0


def test_two_heads_count_as_their_mean_and_are_not_asked_again() -> None:
    head = small.checkpoint(pool="cls+distillation", distillation_token=True).model.head
    random = np.random.default_rng(0).standard_normal((20000, 2, 32)).astype(np.float32)
    with torch.no_grad():
        bias = (head.classify.bias + head.distil.bias) / 2  # type: ignore[union-attr]
        logits = head(torch.from_numpy(random)) - bias
    assert head_scale(head, random) == pytest.approx(typical(logits.numpy()), rel=0.02)
    assert head_of(head, random.mean(axis=1)) is None


def test_a_head_is_asked_for_the_logits_of_an_embedding() -> None:
    checkpoint = small.checkpoint()
    logits, embedding = checkpoint.run(np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32))
    np.testing.assert_allclose(head_of(checkpoint.model.head, embedding), logits, atol=1e-5)


def test_what_all_classes_have_in_common_goes() -> None:
    assert from_class_mean(np.array([[5.0, 7.0], [1.0, 1.0]])).tolist() == [[-1.0, 1.0], [0.0, 0.0]]
    assert from_class_mean(np.array([[5.0], [7.0]])).tolist() == [[5.0], [7.0]]


def test_changed_answers_count_by_how_sure_they_were() -> None:
    ours = np.array([[4.0, 1.0], [0.0, 0.9], [0.1, 0.0]])  # margins 3, 0.9, 0.1
    assert changed_answers(ours, ours) == 0.0
    assert changed_answers(ours, np.array([[4.0, 1.0], [0.0, 0.9], [0.0, 0.1]])) == pytest.approx(0.1 / 4)
    assert changed_answers(ours, ours[:, ::-1]) == 1.0
    several = np.array([[3.0, -1.0]])
    assert changed_answers(several, np.array([[3.0, 1.0]]), multi_label=True) == pytest.approx(0.25)
