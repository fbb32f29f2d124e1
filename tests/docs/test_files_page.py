"""The page about files names every key that has several spellings."""

import re
from pathlib import Path

from mtpcore.gguf.spellings import BY_LAYER, ZERO_IS_NONE

PAGE = (Path(__file__).parents[2] / "docs" / "files.md").read_text("utf-8")


def test_every_key_with_several_spellings_is_named():
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    said = {key: text for keys, text in rows for key in re.findall("`(.*?)`", keys)}
    assert {key for key in said if "0" in said[key]} >= ZERO_IS_NONE
    assert {key for key in said if "list" in said[key]} >= BY_LAYER
