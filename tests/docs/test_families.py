"""Every plugin that comes with mtpcore has a page that says what is known, and a README."""

import re
from pathlib import Path

import pytest

from mtpcore.discovery.registry import describe_plugins

ROOT = Path(__file__).parents[2]
PAGES = {
    found[1]: page
    for page in sorted((ROOT / "docs" / "families").glob("*.md"))
    if (found := re.search(r"^Plugin `(\w+)`\.", page.read_text("utf-8"), re.MULTILINE))
}
PLUGINS = sorted(
    p.name for p in describe_plugins() if p.first_party and p.name not in ("trunks", "backends")
)
plugins = pytest.mark.parametrize("plugin", PLUGINS)


def section(text, name):
    """Return what stands under a heading, or after a paragraph's first word in bold."""
    headed = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    bold = re.search(rf"^\*\*{name}\.\*\* (.*?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert headed or bold, f"no section {name}"
    return (headed or bold)[1]


def test_no_page_is_of_another_plugin():
    assert sorted(PAGES) == PLUGINS


@plugins
def test_the_page_says_what_is_known(plugin):
    text = PAGES[plugin].read_text("utf-8")
    assert section(text, "Where the facts come from").count("\n| ") >= 4
    assert "Evidence: " in " ".join(section(text, "Tap").split())
    assert len(section(text, "Tying")) > 80
    assert section(text, "Limits").count("\n- ") >= 2


@plugins
def test_the_readme_names_the_page_and_every_file(plugin):
    folder = ROOT / "plugins" / plugin
    text = (folder / "README.md").read_text("utf-8")
    assert f"docs/families/{PAGES[plugin].name}" in text
    for file in folder.glob("mtpcore_*/*.py"):
        if file.name != "__init__.py":
            assert f"| `{file.relative_to(folder)}` |" in text
