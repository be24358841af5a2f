"""The names of ImageNet's classes: the right ones, in the right order, each once."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources
from types import ModuleType

from vitrail.weights.imagenet import imagenet1k

APART = {
    "crane (bird)": 134,
    "Cardigan (dog)": 264,
    "cardigan (jacket)": 474,
    "crane (machine)": 517,
    "maillot (tights)": 638,
    "maillot (swimsuit)": 639,
}


def test_known_classes_stand_in_their_places() -> None:
    names = imagenet1k()
    places = {0: "tench", 281: "tabby", 282: "tiger cat", 285: "Egyptian cat", 504: "coffee mug"}
    for place, name in {**places, 967: "espresso", 999: "toilet tissue"}.items():
        assert names[place] == name
    assert {name: names.index(name) for name in APART} == APART


def test_a_thousand_names_that_stay_apart_without_capitals() -> None:
    assert isinstance(imagenet1k(), tuple)
    assert len(imagenet1k()) == len({name.casefold() for name in imagenet1k()}) == 1000
    for name in imagenet1k():
        assert re.fullmatch(r"[A-Za-z][A-Za-z' ()-]*[A-Za-z)]", name), name  # no HTML, no underscores, no commas


def test_order_and_words_are_timm_s(timm: ModuleType) -> None:
    """Against timm's: the same synsets in the file, and the first of the lemmas, but where two classes share it."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    lines = (resources.files("vitrail") / "data" / "imagenet1k.txt").read_text("utf-8").splitlines()
    assert [line.partition(" ")[0] for line in lines] == info.label_names()
    for name, lemmas in zip(imagenet1k(), info.label_descriptions(), strict=True):
        assert name.partition(" (")[0] == lemmas.split(", ")[0]
        assert ("(" in name) == (name in APART)


def test_the_list_is_part_of_the_package() -> None:
    """Found through the package itself, in a fresh interpreter and another folder."""
    code = "from vitrail.weights.imagenet import imagenet1k; print(imagenet1k()[967])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    assert (run.stdout, run.returncode) == ("espresso\n", 0), run.stderr
