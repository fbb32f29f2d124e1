"""Texts in which lookup finds, beside the one that is written: their index, and its file."""

from collections import Counter
from itertools import takewhile

import numpy as np
import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    BatchError,
    Context,
    Generator,
    LinkError,
    LookupTexts,
    ModelFileError,
    Sampling,
    link,
    load_model,
)
from mtpcore._ext._lookup import find_in_sorted
from mtpcore.drafting.lookup import Lookup, TextMatch

ANY = "0" * 32
HEADER = 64


@pytest.fixture(scope="module")
def model():
    with load_model("demo") as model:
        yield model


def ints(tokens):
    return np.array(tokens, np.int32)


def find(texts, tokens, *asked):
    return find_in_sorted(texts.tokens, texts.places, ints(tokens), *asked)


def find_by_definition(text, tokens, orders, k, longest):
    """Compare the last tokens with those that end at every place."""

    def length(place):
        pairs = zip(reversed(text[: place + 1]), reversed(tokens), strict=False)
        return min(longest, len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]))

    followed = [place for place in range(len(text) - 1) if text[place + 1] >= 0]
    best = max(map(length, followed), default=0)
    if best < orders[0]:
        return [], 0, 0, 0
    least = max(order for order in orders if order <= best)
    places = [place for place in followed if length(place) >= least]
    follows = Counter(text[place + 1] for place in places)
    chosen = max(places, key=lambda place: (length(place), follows[text[place + 1]], place))
    draft = [*takewhile(lambda token: token >= 0, text[chosen + 1 : chosen + 1 + k])]
    return draft, best, len(places), follows[text[chosen + 1]]


TEXTS = st.one_of(
    st.lists(st.integers(-1, 2), max_size=30), st.lists(st.integers(0, 9), max_size=60)
)


@searching(150)
@given(TEXTS, TEXTS, st.integers(1, 3), st.integers(1, 40), st.integers(0, 9))
def test_finds_what_the_definition_finds(text, tokens, shortest, longest, k):
    orders = [shortest, 2 * shortest, 4 * shortest]
    found = find(LookupTexts(text, ANY), tokens, orders, k, longest)
    assert found == find_by_definition(text, tokens, orders, k, longest)


def test_the_longest_match_is_found_among_thousands_of_shorter_ones():
    text = np.random.default_rng(3).integers(0, 2, 5000).astype(np.int32)
    texts = LookupTexts(text, ANY)
    for end in range(40, 5000, 200):
        draft, length, *_ = find(texts, text[end - 25 : end], [2, 4, 8], 3, 32)
        assert (draft, length) == (text[end : end + 3].tolist(), 25)


def test_a_longer_match_elsewhere_counts_more():
    texts = LookupTexts([7, 8, 9, 1, 2, 3, 4, -1, 5, 6], ANY)
    tokens = ints([1, 2, 30, 1, 2])  # two tokens match in the text itself
    assert Lookup([texts]).find(0, tokens, 2) == TextMatch([30, 1], 2, 1, 1)
    tokens = ints([1, 2, 30, 9, 1, 2])
    assert Lookup([texts]).find(0, tokens, 4) == TextMatch([3, 4], 3, 1, 1)
    assert Lookup([texts, LookupTexts([], ANY)]).propose(0, tokens, 4).draft == [3, 4]


def test_a_file_holds_the_index(tmp_path):
    tokens = np.random.default_rng(1).integers(-1, 20, 3000).astype(np.int32)
    written = LookupTexts(tokens, ANY)
    written.write(tmp_path / "index")
    read = LookupTexts.read(tmp_path / "index")
    assert (len(read), read.tokenizer) == (3000, ANY)
    for place in range(5, 3000, 50):
        asked = tokens[place - 5 : place], [2, 4, 8], 6, 32
        assert find(read, *asked) == find(written, *asked) != ([], 0, 0, 0)


@searching(100)
@given(st.data())
def test_a_damaged_file_is_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "index"
    LookupTexts([1, 2, 3, -1, 1, 2, 4, 1, 2], ANY).write(path)
    held = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(0, 255))
    held = held[: data.draw(st.integers(0, len(held)))] if data.draw(st.booleans()) else held
    path.write_bytes(held)
    try:
        texts = LookupTexts.read(path)
    except ModelFileError:
        return
    draft, length, places, agreeing = find(texts, [3, 1, 2], [1, 2], 5, 32)
    assert (len(draft) <= 5, length <= 3, agreeing <= places <= 9) == (True, True, True)


@pytest.mark.parametrize("value", [-1, -(2**31), 2**31 - 1, 9])
def test_places_that_are_none_are_not_looked_at(tmp_path, value):
    path = tmp_path / "index"
    LookupTexts([1, 2, 3, -1, 1, 2, 4, 1, 2], ANY).write(path)
    held = path.read_bytes()
    path.write_bytes(held[: HEADER + 36] + ints([value] * 9).tobytes())
    assert find(LookupTexts.read(path), [1, 2], [2], 3, 8) == ([], 0, 0, 0)


@pytest.mark.parametrize(
    ("n", "what"), [(0, b""), (HEADER, b"?" * HEADER), (16, b"mtpcore lookup 2"), (5, b"other")]
)
def test_what_is_no_index_is_refused(tmp_path, n, what):
    path = tmp_path / "index"
    LookupTexts([1, 2], ANY).write(path)
    path.write_bytes(what + path.read_bytes()[n:] if n else what)
    with pytest.raises(ModelFileError, match="not a whole lookup index"):
        LookupTexts.read(path)
    with pytest.raises(ModelFileError, match="cannot write"):
        LookupTexts([1, 2], ANY).write(tmp_path)


def test_tokens_of_another_tokenizer_are_refused(model, tmp_path):
    other = LookupTexts([1, 2, 3], ANY)
    other.write(tmp_path / "index")
    for act in (
        lambda: other.check(model),
        lambda: LookupTexts.open(model, tmp_path / "index"),
        lambda: link(Context(model, 64), Lookup([other])),
    ):
        with pytest.raises(LinkError, match="another tokenizer"):
            act()
    mine = LookupTexts.of_texts(model, ["a = 1"]).tokenizer
    with pytest.raises(LinkError, match="another tokenizer"):
        LookupTexts([model.hparams.n_vocab], mine).check(model)


def test_arguments_are_checked(model):
    for make in (
        lambda: LookupTexts([[1]], ANY),
        lambda: LookupTexts([1], "?" * 32),
        lambda: LookupTexts.of_texts("demo", []),
        lambda: Lookup(["a text"]),
    ):
        with pytest.raises(BatchError):
            make()


def test_a_text_that_was_written_before_is_drafted_from(model, tmp_path):
    """The text is the same, and comes in fewer passes."""
    prompt = model.tokenizer.encode("import os\n\n\ndef ")
    plain = Generator(Context(model, 120), sampling=Sampling.greedy(), draft=0)
    wanted = [*plain.generate(prompt, max_tokens=60)]
    path = tmp_path / "yesterday.py"
    path.write_text(model.tokenizer.decode([*prompt, *wanted]))
    LookupTexts.open(model, path).write(tmp_path / "index")
    passes = {}
    for name, paths in {"alone": [], "text": [path], "index": [tmp_path / "index"]}.items():
        lookup = Lookup([LookupTexts.open(model, one) for one in paths])
        generator = Generator(
            link(Context(model, 120), lookup), sampling=Sampling.greedy(), draft=8
        )
        assert [*generator.generate(prompt, max_tokens=60)] == wanted
        assert [*generator.stats.drafters] == ["lookup"]
        passes[name] = 60 - generator.stats.accepted
    assert passes["text"] == passes["index"] < 0.6 * passes["alone"]
