"""The tables of fields have every field, and what they say of kinds of drafters is true."""

import re
from pathlib import Path

import msgspec
import pytest
from harness.kinds import KINDS, SAMPLES, draft, linked, write_files

import mtpcore
from mtpcore import plugin

PAGE = Path(__file__).parents[2] / "docs" / "plugin-reference.md"
STRUCTS = (
    *("DrafterSpec", "Fit", "Feed", "Heads", "TreeShape", "Block", "Noise", "SharedMemory", "Tie"),
    *("ModelSpec", "Codebooks", "Companion"),
)
TRUNKS = {"further graphs", "encoder", "codes", "two files"}
OF_TRUNKS = ("ModelSpec", "Codebooks", "Companion")


def section(text):
    return text.split("\n## Fields\n")[1].split("\n## ")[0]


def tables(text):
    """Return the rows of each struct's table: the cells that name fields, and the last cells."""
    found = re.findall(r"^`(\w+)`[^\n|]*:\n\n((?:\|.*\n)+)", section(text), re.MULTILINE)
    return {name: [_cells(row) for row in table.splitlines()[2:]] for name, table in found}


def _cells(row):
    first, *_, last = (cell.strip() for cell in row.strip("|").split("|"))
    return first, last


def fields(cell):
    """Return the fields that a first cell names; what it says of values comes after them."""
    return re.findall(r"`(\w+)`", re.split(r":| with ", cell)[0])


def read(cell, known):
    """Return the kinds with which a field runs, and those that refuse it."""
    runs, _, refused = cell.partition("refused: ")
    runs = _kinds(runs.removesuffix("; "), known, set())
    return runs, _kinds(refused, known, runs)


def _kinds(text, known, others):
    if text in ("all", "all others"):
        return known - others
    left = text.startswith("all but ")
    named = {name for name in text.removeprefix("all but ").split(", ") if name}
    assert named <= known, f"no such kinds: {sorted(named - known)}"
    return known - named if left else named


ROWS = tables(PAGE.read_text("utf-8"))
CLAIMS = [
    (struct, cell, kind, verdict)
    for struct in STRUCTS
    if struct not in OF_TRUNKS
    for cell, kinds in ROWS.get(struct, ())
    for verdict, several in zip(("runs", "refused"), read(kinds, {*KINDS}), strict=True)
    for kind in sorted(several)
    if cell in SAMPLES.get(struct, ())
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("kinds")
    write_files(made)
    return made


def faults(text):
    """Return fields that a page's tables leave out, and names there that are no fields."""
    rows = tables(text)
    wanted = {(name, field) for name in STRUCTS for field in _names(name)}
    found = {(name, field) for name in rows for cell, _ in rows[name] for field in fields(cell)}
    return {"left out": sorted(wanted - found), "not there": sorted(found - wanted)}


def _names(struct):
    return [field.name for field in msgspec.structs.fields(getattr(plugin, struct))]


def test_every_field_has_a_row():
    assert faults(PAGE.read_text("utf-8")) == {"left out": [], "not there": []}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("| `mask` | the id", "| the mask | the id", "left out"),
        ("| `limit`", "| `most`", "not there"),
    ],
)
def test_faults_are_seen(old, new, fault):
    text = PAGE.read_text("utf-8")
    assert old in text
    assert faults(text.replace(old, new))[fault]


def test_rows_name_kinds_that_there_are():
    for struct, rows in ROWS.items():
        for _, kinds in rows:
            runs, refused = read(kinds, TRUNKS if struct in OF_TRUNKS else {*KINDS})
            assert runs | refused, (struct, kinds)
            assert not runs & refused, (struct, kinds)


def test_the_page_explains_every_kind():
    text = PAGE.read_text("utf-8").split("\n## Kinds of drafters\n")[1].split("\n## ")[0]
    table = re.search(r"^\| kind \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)[1]
    assert re.findall(r"^\| ([\w ]+) \|", table, re.MULTILINE) == [*KINDS]
    assert f"| | {' | '.join(KINDS)} |" in text


def test_every_refusal_can_be_tried():
    for struct, rows in ROWS.items():
        lacking = [cell for cell, kinds in rows if "refused: " in kinds]
        assert {*SAMPLES.get(struct, ())} >= {*lacking}, struct
    for struct, samples in SAMPLES.items():
        assert {*samples} <= {cell for cell, _ in ROWS[struct]}, struct


@pytest.mark.parametrize("kind", KINDS)
def test_a_toy_of_each_kind_drafts(kind, folder):
    assert len(draft(KINDS[kind], folder))


@pytest.mark.parametrize(("struct", "cell", "kind", "verdict"), CLAIMS)
def test_a_field_runs_or_is_refused_as_the_page_says(struct, cell, kind, verdict, folder):
    """Refused at the latest when contexts are linked, not when something is drafted."""
    spec = SAMPLES[struct][cell](KINDS[kind], kind)
    if verdict == "runs":
        assert len(draft(spec, folder))
    else:
        with pytest.raises((mtpcore.PluginError, mtpcore.LinkError)):
            linked(spec, folder)
