"""Tokens that a model file suppresses: no text has them, unless its settings name them."""

from math import inf

import msgspec
import pytest
from harness.hashed import HashModel
from harness.scripted import SCRIPTS, Letters, Scripted, cross_of, plain, run

from mtpcore.decoding import Generator
from mtpcore.sampling import Sampling

PROMPT, SAMPLING = [3, 1, 4], Sampling(temperature=1.0, seed=8)
TRUTH = plain(PROMPT, SAMPLING, 30)
SUPPRESSED = tuple(sorted({TRUTH[0], TRUTH[7]}))
BIASES = {2: 0.5, SUPPRESSED[0]: 0.0}


def biased(biases):
    return msgspec.structs.replace(SAMPLING, logit_bias=biases)


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, dict.fromkeys(SUPPRESSED, -inf)),
        (dict.fromkeys(SUPPRESSED, 0.0), None),
        (BIASES, BIASES | {SUPPRESSED[1]: -inf}),
    ],
    ids=["none", "all allowed", "one allowed"],
)
def test_texts_are_those_with_biases(draft, given, meant):
    model = HashModel()
    model.tokenizer = Letters()
    model.tokenizer.suppressed = SUPPRESSED
    script = Scripted(SCRIPTS["right"], [[*PROMPT, *TRUTH]])
    cross, _ = cross_of(script, model=model)
    generator = Generator(cross, sampling=biased(given), draft=draft)
    request = generator.add(PROMPT, max_tokens=len(TRUTH))
    run(generator)
    assert request.tokens == plain(PROMPT, biased(meant), len(TRUTH))
    forbidden = {t for t, bias in (request.sampling.logit_bias or {}).items() if bias == -inf}
    assert not forbidden & {*request.tokens}
    assert (request.tokens == TRUTH) == (meant is None)
