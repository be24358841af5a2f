"""quietly: nothing that is printed, warned of or logged comes out; errors do, and afterwards all is as it was."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest

from vitrail.exporters.quiet import quietly


def talk() -> None:
    print("printed")
    print("printed as an error", file=sys.stderr)
    warnings.warn("warned", UserWarning, stacklevel=1)
    logging.getLogger("a.library").error("logged")


def test_nothing_comes_out(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with quietly():
            talk()
        assert seen == []
        assert caplog.records == []
        talk()
        assert [str(each.message) for each in seen] == ["warned"]
    assert [each.message for each in caplog.records] == ["logged"]
    printed, errors = capfd.readouterr()
    assert (printed, errors.splitlines()[0]) == ("printed\n", "printed as an error")


@pytest.mark.parametrize("before", [logging.NOTSET, logging.WARNING])
def test_the_log_is_as_it_was_even_after_an_error(before: int) -> None:
    kept = logging.root.manager.disable
    logging.disable(before)
    try:
        with quietly():
            assert logging.root.manager.disable == logging.ERROR
        assert logging.root.manager.disable == before
        with pytest.raises(KeyError), quietly():
            raise KeyError
        assert logging.root.manager.disable == before
    finally:
        logging.disable(kept)
