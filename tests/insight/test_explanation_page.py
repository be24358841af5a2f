"""The page of explanations: images beside their maps, verdicts, a legend, and names that are only text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image

from evaluation.markup import read
from insight.test_verdicts import scores
from vitrail.insight.explanation import Explanation
from vitrail.insight.explanation_page import MOST, explained_image, gallery_page
from vitrail.reporting.heat_legend import CROSSED, FRAMED

IMAGE = Image.linear_gradient("L").resize((300, 200)).convert("RGB")
FIRST = Explanation(
    np.arange(6.0).reshape(2, 3), "relevance", "ant", 0.93, True, scores(0.35), image=IMAGE, box=(0, 0, 300, 200)
)


def test_images_stand_beside_their_maps_with_a_verdict_on_each() -> None:
    second = replace(FIRST, method="rollout", scores=scores(0.06), shuffled=0.95, warnings=("it hardly depends",))
    found = read(gallery_page("net", [explained_image("a <b>.jpg", [FIRST, second])], "vitrail explain net"))
    assert [each.text for each in found.all("h3")] == ["a <b>.jpg"]
    assert [each.text for each in found.all("figcaption")] == [
        "the image",
        "relevancefaithfulness: strong, +0.35far better than random",
        "rolloutfaithfulness: weak, +0.06about as good as random",
    ]
    assert [len(found.all("figure", tone)) for tone in ("good", "warn")] == [1, 1]
    assert "rollout is not to be relied on: it hardly depends" in found.text
    tiles = [each.text for each in found.all("div", "tile")]
    assert [each.split("of")[0] for each in tiles] == [
        *("1faithfulness: strong", "0faithfulness: fair", "1faithfulness: weak", "0faithfulness: none")
    ]
    tones = [each.attributes["class"] for each in found.all("div", "tile")]
    assert tones == ["tile good", "tile good", "tile warn", "tile bad"]  # those of the maps
    assert "1 image, explained for net" in found.text
    assert "speaks most for the answer" in found.text
    assert CROSSED not in found.text
    assert "Why “ant”? The network gives it 93.0 %." in found.text
    rows = [each.text for each in found.all("tr")]
    assert any(each.startswith("rolloutlikeness to a map without learningpoor0.95") for each in rows)
    assert any(each.startswith("rolloutfaithfulnessweak+0.06") for each in rows)


def test_crosses_have_a_legend_and_many_images_an_end() -> None:
    marked = replace(FIRST, outliers=np.eye(2, 3) > 0)
    found = read(gallery_page("net", [explained_image("x", [marked])] * (MOST + 1)))
    assert CROSSED in found.text
    assert len(found.all("h3")) == MOST
    assert "The first 100 of 101 images" in found.text


def test_maps_that_were_not_checked_say_so() -> None:
    found = read(gallery_page("net", [explained_image("x", [replace(FIRST, scores=None)])]))
    assert "relevancenot checked" in [each.text for each in found.all("figcaption")]
    assert "nothing is known of what they are worth" in found.text


def test_a_part_of_an_image_has_a_frame_and_a_doubtful_answer_its_mark() -> None:
    plain = gallery_page("net", [explained_image("a.jpg", [FIRST])])
    assert FRAMED not in plain
    assert "This answer is marked" not in plain
    part = replace(FIRST, box=(0.4, 20.0, 300.0, 180.0), remark="unlike anything it was trained on")
    found = read(gallery_page("net", [explained_image("a.jpg", [part])]))
    assert FRAMED in found.text
    assert [each.text for each in found.all("p", "warn")] == [
        "This answer is marked: unlike anything it was trained on."
    ]
    assert len(found.all("div", "large")) == 1
