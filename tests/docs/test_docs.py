"""The documentation builds without a warning, and its Python code runs."""

import logging
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import mtpcore_glm_nextn
import pytest
from harness.pages import PAGES, README, blocks_of

import mtpcore
from mtpcore.discovery.registry import Registry

ROOT = Path(__file__).parents[2]


def run_page(page, monkeypatch):
    """Execute a page's Python blocks in order, in one namespace, with the page's line numbers."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    logger = logging.getLogger("mtpcore")
    level = logger.level
    try:
        for block in blocks_of(page):
            exec(compile(block, str(page), "exec"), module.__dict__)
    finally:
        logger.setLevel(level)  # a page may turn the log on
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_code_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)


def test_readme_plugin_drafts_as_the_packaged_one(monkeypatch, tmp_path):
    page = run_page(README, monkeypatch)
    model = mtpcore.load_model("demo", plugins=Registry.of(mtpcore_glm_nextn, page))
    prompt = model.tokenizer.encode("def read_config(path):")
    seen = []
    for name in ("my_nextn", "glm_nextn"):
        cross = mtpcore.link(mtpcore.Context(model), drafter=name)
        generator = mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=3)
        tokens = list(generator.generate(prompt, max_tokens=32, ignore_eos=True))
        seen.append((tokens, generator.stats.accepted_per_position))
    assert seen[0] == seen[1]
    assert sum(seen[0][1]) > 0


def test_readme_gives_the_commands_that_decide():
    text = README.read_text("utf-8")
    run = (ROOT / ".ci" / "run").read_text()
    install = re.search(r"^ +(python3 -m venv .*)$", run, re.M)[1]
    test = re.search(r"^(\.venv/bin/pytest .*) </dev/null$", run, re.M)[1]
    command = f"{install} && {test}"
    assert f"```sh\n{command}\n```" in text
    assert '".[test,lint,docs,cuda,wheels,ray]" ./demos' in command  # or tests would skip
    assert 'mtpcore run demo -p "def read_config(path):" --draft 3' in text


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_blocks_share_names_and_fail_at_their_line(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 2\n```\ntext\n\n```python\nx *= 3\nx[0]\n```\n")
    with pytest.raises(TypeError) as caught:
        run_page(page, monkeypatch)
    assert sys.modules["page"].x == 6
    assert caught.traceback[-1].lineno + 1 == 8


def test_documentation_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason="needs the extra docs")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "html" / "index.html").exists()


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        listed += extra
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in listed}
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert names == set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE))
