"""train: every option has a name that completes, a kind, and a line that says what it does."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields

import jedi
import pytest

import vitrail
from vitrail.errors import InputError
from vitrail.training import Options, train


def test_the_options_of_train_are_those_of_options() -> None:
    """Names, order, defaults and kinds."""
    *parameters, progress = list(inspect.signature(train).parameters.values())[1:]
    assert (progress.name, progress.default) == ("progress", None)  # of the call, not of the run
    expected = [
        (each.name, each.type, each.default_factory() if each.default is MISSING else each.default)  # type: ignore[misc]
        for each in fields(Options)
    ]
    assert [(each.name, each.annotation, each.default) for each in parameters if each.name != "callbacks"] == [
        each for each in expected if each[0] != "callbacks"
    ]
    assert parameters[-1].name == expected[-1][0] == "callbacks"
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters)


def test_every_option_is_documented_in_a_line() -> None:
    lines = re.findall(r"^- (\w+): \S.{8,}$", inspect.getdoc(train) or "", re.MULTILINE)
    assert lines == list(inspect.signature(train).parameters)


@pytest.mark.parametrize(
    "typed, offered", [("ep", "epochs="), ("min", "minutes="), ("save", "save_seconds="), ("tens", "tensorboard=")]
)
def test_an_option_completes(typed: str, offered: str) -> None:
    source = f"import vitrail\nvitrail.train('x', {typed}"
    assert offered in [each.name for each in jedi.Script(source).complete()]


def test_what_train_gives_completes() -> None:
    names = [each.name for each in jedi.Script("import vitrail\nvitrail.train('x').").complete()]
    assert {"best", "evaluation", "folder"} <= set(names)


def test_help_shows_the_options() -> None:
    import pydoc

    text = pydoc.plain(pydoc.render_doc(vitrail.train))
    assert "epochs: 'float | None' = None" in text
    assert "how often every image is seen" in text


def test_an_option_that_is_not_known_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="train has no option 'epoch': did you mean 'epochs'"):
        train("photos", epoch=1)  # type: ignore[call-arg]


def test_options_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of them, under its own name."""
    from vitrail.training import trainer

    given = {"epochs": 3.0, "seed": 7, "name": "ants", "check": False, "val": 0.25, "size": (32, 16)}
    monkeypatch.setattr(trainer, "run", lambda data, options: (data, options))
    data, options = train("photos", **given)  # type: ignore[arg-type, misc]
    assert data == "photos"
    assert options == Options(**given, callbacks=options.callbacks)  # type: ignore[arg-type]


def test_who_listens_is_not_replaced_by_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.training import Callbacks, trainer

    monkeypatch.setattr(trainer, "run", lambda data, options: options)
    heard = Callbacks(log=print)
    assert train("photos", callbacks=heard, progress=True).callbacks is heard  # type: ignore[attr-defined]
    bar = train("photos", progress=True).callbacks  # type: ignore[attr-defined]
    assert bar.log is Callbacks().log
    assert bar.step is not Callbacks().step
    assert train("photos").callbacks == Callbacks()  # type: ignore[attr-defined]  # nobody watches
