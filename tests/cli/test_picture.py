"""Bars in SVG: as long as what they stand for."""

import xml.etree.ElementTree as ElementTree

import pytest

from mtpcore.cli.measure import Sample
from mtpcore.cli.picture import draw_bars

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_medians():
    bars = [("a <b> & c", Sample(10.0, 5.0, 20.0), False), ("drafted", Sample(5.0, 5.0, 5.0), True)]
    picture = ElementTree.fromstring(draw_bars("x & y", "tokens/s", bars))
    first, second = (one for one in picture.iter(f"{SVG}rect") if one.get("class") == "bar")
    assert float(first.get("width")) == pytest.approx(2 * float(second.get("width")))
    assert first.get("fill") != second.get("fill")
    line = next(picture.iter(f"{SVG}line"))
    begin, end = (float(line.get(name)) - float(first.get("x")) for name in ("x1", "x2"))
    assert end == pytest.approx(2 * float(first.get("width")))
    assert begin == pytest.approx(float(first.get("width")) / 2)
    assert end <= float(picture.get("width"))
    texts = [one.text for one in picture.iter(f"{SVG}text")]
    assert texts == ["x & y", "a <b> & c", "10.0 tokens/s", "drafted", "5.0 tokens/s"]


@pytest.mark.parametrize("bars", [[], [("none", Sample(0.0, 0.0, 0.0), False)]])
def test_pictures_of_nothing(bars):
    assert ElementTree.fromstring(draw_bars("", "", bars)).tag == f"{SVG}svg"
