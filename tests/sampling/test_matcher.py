"""Matchers against languages by definition: masks of texts and drafts, wherever a text goes."""

import numpy as np
import pytest
from harness.grammars import (
    END,
    N_VOCAB,
    PIECES,
    Pieces,
    allowed,
    bits,
    consume,
    is_forced,
    languages,
    spell,
)
from harness.scripted import trees_around
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import DraftTree, Grammar, SamplingError
from mtpcore.sampling import GrammarCompiler, fill_masks
from mtpcore.sampling.trial import may_take_long, try_grammar

pytest.importorskip("llguidance")

COMPILER = GrammarCompiler(Pieces(), N_VOCAB)


def assert_mask(mask, language, path):
    """It allows what the language allows; of what must follow, one spelling is enough."""
    found, wanted = bits(mask), allowed(language, path)
    if is_forced(language, path):
        assert found.any()
        assert not (found & ~wanted).any(), path
    else:
        assert found.tolist() == wanted.tolist(), path


@st.composite
def walks(draw, language, most=8):
    """Mostly tokens that a language allows, now and then any."""
    tokens = []
    for _ in range(draw(st.integers(0, most))):
        fine = np.flatnonzero(allowed(language, tokens)).tolist()
        some = st.sampled_from(fine) if fine and draw(st.integers(0, 9)) else st.integers(0, END)
        tokens.append(draw(some))
    return tokens


def paths(text, draft):
    """The text before each row of a mask."""
    found = [text]
    parents = draft.parent.tolist() if isinstance(draft, DraftTree) else range(-1, len(draft) - 1)
    ids = draft.tokens.tolist() if isinstance(draft, DraftTree) else draft
    for above, token in zip(parents, ids, strict=True):
        found.append([*found[above + 1], token])
    return found


@searching(150)
@given(data=st.data(), several=st.lists(languages(), min_size=1, max_size=3))
def test_masks_are_those_of_the_language(data, several):
    """Of several matchers at once, each of which follows its text wherever that goes."""
    matchers = [COMPILER.matcher(Grammar.of_regex(spell(one))) for one in several]
    for _ in range(3):
        asked = []
        for matcher, language in zip(matchers, several, strict=True):
            text, more = data.draw(walks(language)), data.draw(walks(language, 12))
            draft = more[len(text) :]
            if data.draw(st.booleans()):
                draft = data.draw(trees_around(draft))
            asked.append((matcher, np.array(text, np.int32), draft))
        for (_, text, draft), masks, language in zip(
            asked, fill_masks(asked), several, strict=True
        ):
            for path, mask in zip(paths(text.tolist(), draft), masks, strict=True):
                drafted = path[len(text) :]
                before = (path[: len(text) + i] for i in range(len(drafted)))
                if all(allowed(language, one)[t] for one, t in zip(before, drafted, strict=True)):
                    assert_mask(mask, language, path)  # nobody comes after others


@searching(100)
@given(data=st.data(), language=languages())
def test_drafts_are_cut_where_the_language_forbids_them(data, language):
    matcher = COMPILER.matcher(Grammar.of_regex(spell(language)))
    text, ids = data.draw(walks(language)), data.draw(walks(language))
    array, is_over = np.array(text, np.int32), END in text and allowed(language, text).all()

    def is_fine(path, token):
        return is_over or (token != END and allowed(language, path)[token])

    n = next((i for i in range(len(ids)) if not is_fine([*text, *ids[:i]], ids[i])), len(ids))
    assert matcher.cut(array, ids) == ids[:n]
    tree = data.draw(trees_around(ids))
    rows = paths(text, tree)
    kept = np.zeros(len(tree), bool)
    for node, above in enumerate(tree.parent.tolist()):
        fine = is_over or allowed(language, rows[above + 1])[tree.tokens[node]]
        kept[node] = (above < 0 or kept[above]) and fine
    assert matcher.cut(array, tree) == tree.select(kept)


@searching(100)
@given(data=st.data(), language=languages())
def test_what_is_forced_spells_what_must_follow(data, language):
    """Each of its letters is the only one that may follow, and the text does not end before it."""
    matcher = COMPILER.matcher(Grammar.of_regex(spell(language)))
    text = data.draw(walks(language))
    forced = matcher.forced(np.array(text, np.int32), 5)
    assert len(forced) <= 5
    left = language
    for token in text:
        left = None if left is None or token == END else consume(left, token)
    for token in forced:
        for i, _ in enumerate(PIECES[token]):
            letters = [letter for letter in range(4) if consume(left, letter) is not None]
            assert letters == ["abcd".index(PIECES[token][i])]
            left = consume(left, letters[0])


def test_what_must_follow_is_forced():
    matcher = COMPILER.matcher(Grammar.of_regex("a(abcdabcd|b)"))
    assert matcher.forced(np.array([0, 9], np.int32), 8) == []
    assert matcher.forced(np.array([9], np.int32), 8)[:1] == [PIECES.index("b")]
    assert matcher.forced(np.array([9], np.int32), 0) == []


@pytest.mark.parametrize(
    ("source", "text", "ends"),
    [
        ('root ::= "a" b\nb ::= "b" | "c" "d"', "acd", True),
        ('start: "a" (start | "b") "c"', "aabcc", True),
        ('start: "a" (start | "b") "c"', "aabc", False),
        ('start: "a" <[12]>? "b"', "ab", True),
    ],
    ids=["GBNF", "Lark", "Lark, not yet", "Lark, a control token"],
)
def test_notations(source, text, ends):
    tokens = [PIECES.index(letter) for letter in text]
    mask = fill_masks([(COMPILER.matcher(Grammar(source)), np.array(tokens, np.int32), ())])[0]
    assert bits(mask[0])[END] == ends


def test_parts():
    grammar = Grammar(
        "start: @one @two", {"one": Grammar("start: A\nA: /a+/"), "two": Grammar.of_regex("b")}
    )
    matcher = COMPILER.matcher(grammar)
    masks = fill_masks([(matcher, np.array([0], np.int32), [0, 1])])[0]
    assert [np.flatnonzero(bits(mask)).tolist() for mask in masks] == [
        [0, 1, 4, 9],
        [0, 1, 4, 9],
        [END],
    ]


def test_a_text_without_an_end_token_has_nothing_after_its_form():
    compiler = GrammarCompiler(Pieces(ends=()), N_VOCAB)
    matcher = compiler.matcher(Grammar.of_regex("ab"))
    masks = fill_masks([(matcher, np.array([0], np.int32), [1])])[0]
    assert [np.flatnonzero(bits(mask)).tolist() for mask in masks] == [[1], []]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("start: nothing"),
        Grammar("no grammar at all"),
        Grammar("root ::= ("),
        Grammar("root ::= " + "(" * 5000),
        Grammar.of_regex("(a"),
        Grammar("start: A\nA: " + " & ".join(f"/(?s:.*){i}(?s:.*)/" for i in range(60))),
        Grammar.of_schema({"enum": []}),
        Grammar.of_schema({"type": "strng"}),
        Grammar.of_schema({"$ref": "#/$defs/none"}),
        Grammar("start: @gone"),
    ],
    ids=lambda one: one.source[:30],
)
def test_grammars_that_cannot_be_used(grammar):
    with pytest.raises(SamplingError) as caught:
        COMPILER.matcher(grammar)
    assert caught.value.where == "grammar"
    assert caught.value.got


def test_patterns_that_take_too_long_together():
    """For some twenty llguidance would take hours, with no limit of its own."""
    hostile = {"allOf": [{"type": "string", "pattern": f".*{i}.*"} for i in range(30)]}
    with pytest.raises(SamplingError) as caught:
        COMPILER.matcher(Grammar.of_schema(hostile))
    assert "too long" in caught.value.what
    many = {f"p{i}": {"type": "string", "pattern": "^[ab]+$"} for i in range(6)}
    fine = Grammar.of_schema({"allOf": [{"type": "object", "properties": many}]})
    assert may_take_long(fine.source)
    COMPILER.matcher(fine)


def test_a_process_that_cannot_be_started(monkeypatch):
    monkeypatch.setattr("mtpcore.sampling.trial.spawn.get_executable", lambda: b"/dev/null")
    with pytest.raises(SamplingError) as caught:
        try_grammar('start: "a"')
    assert "process" in caught.value.what


def test_without_the_library(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr("mtpcore.sampling.matcher.importlib.import_module", refuse)
    with pytest.raises(SamplingError) as caught:
        GrammarCompiler(Pieces(), N_VOCAB)
    assert "mtpcore[grammar]" in caught.value.fix
