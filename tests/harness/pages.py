"""Python code in the pages of the documentation, block by block."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page):
    """Return the page's blocks, each after as many empty lines as there are lines before it."""
    text = page.read_text("utf-8")
    return ["\n" * text.count("\n", 0, b.start(1)) + b[1] for b in _BLOCK.finditer(text)]


PAGES = [
    page
    for page in [README, *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts and blocks_of(page)
]
