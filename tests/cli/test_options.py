"""What is read out of the text of options."""

from __future__ import annotations

import pytest

from vitrail.cli.options import parse_numbers
from vitrail.errors import InputError


def test_numbers_are_whole_and_from_1_and_no_number_twice() -> None:
    assert parse_numbers("--batch", "1, 16,1,99999") == (1, 16, 99_999)
    for wrong in ("0", "1,0", "", "1,,2", "-1", "1.5", "100000", "²"):
        with pytest.raises(InputError, match="--batch: expected whole numbers like 1,16, got"):
            parse_numbers("--batch", wrong)
