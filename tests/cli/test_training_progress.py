"""What a training says on the terminal while it runs, and at its end."""

from __future__ import annotations

import pytest

from vitrail.cli import training_progress


@pytest.mark.parametrize("epoch, waited, told", [(1, 0.31, True), (1, 0.29, False), (3, 0.31, True), (4, 0.31, False)])
def test_an_epoch_that_waits_for_images_says_what_to_do(
    epoch: int, waited: float, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"epoch": epoch, "loss": 1.0, "val_score": 0.5, "seconds": {"compute": 1 - waited, "data": waited}}
    with training_progress.training_bar() as callbacks:
        callbacks.epoch(row)
    said = capsys.readouterr().err
    assert f"epoch {epoch}: loss 1.000, validation 50.0 %; {1 - waited:.1f} s computing" in said
    assert ("31 % of the time goes into waiting for images: try --cache FOLDER" in said) == told
