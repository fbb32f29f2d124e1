"""Where no token is left to choose: a text ends there, whatever drafts; the direct API raises."""

import numpy as np
import pytest
from harness.hashed import N_VOCAB
from harness.scripted import SCRIPTS, TREES, Scripted, cross_of, plain, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Generator, NoTokenError, Sampling, SamplingError
from mtpcore.runtime.batch import Batch

PROMPT, WARM = [3, 1, 4], Sampling(temperature=1.0, seed=8)
ALL = {token: -np.inf for token in range(N_VOCAB)}


def in_place(tokens, logits, n):
    if len(tokens) == n:
        logits[:] = -np.inf


def returned(tokens, logits, n):
    return np.full(N_VOCAB, np.nan, np.float32) if len(tokens) == n else None


def raised(tokens, logits, n):
    if len(tokens) == n:
        raise NoTokenError("the grammar allows nothing")


@searching(80)
@given(
    sampling=settings(),
    draft=st.integers(0, 6),
    n=st.integers(0, 10),
    kind=st.sampled_from(["head", "script", "both"]),
    script=st.sampled_from([*sorted(SCRIPTS), *sorted(TREES)]),
    forbid=st.sampled_from([in_place, returned, raised]),
    max_tokens=st.integers(1, 12),
    n_ctx=st.integers(4, 20),
)
def test_a_text_ends_where_no_token_is_left(
    sampling, draft, n, kind, script, forbid, max_tokens, n_ctx
):
    truth, other = plain(PROMPT, sampling, 12), plain([5, 2], WARM, 5)
    scripted = Scripted((SCRIPTS | TREES)[script], [[*PROMPT, *truth], [5, 2, *other]], None)
    roles = {"head": ["head"], "script": [scripted], "both": [scripted, "head"]}[kind]
    cross, _ = cross_of(*roles, skill=14, n_ctx=n_ctx, n_seq_max=2, n_batch=8)
    generator = Generator(cross, draft=draft)
    request = generator.add(
        PROMPT,
        sampling=sampling,
        max_tokens=max_tokens,
        logprobs=0,
        logits_processor=lambda tokens, logits: forbid(tokens, logits, len(PROMPT) + n),
    )
    beside = generator.add([5, 2], sampling=WARM, max_tokens=min(5, n_ctx - 1))
    run(generator)
    room = min(max_tokens, n_ctx - len(PROMPT) + 1)
    assert request.tokens == truth[: min(n, room)]
    assert request.finish_reason == ("no_token" if n < room else "length")
    assert len(request.logprobs) == len(request.tokens) == len(request.drafted)
    assert beside.tokens == other[: min(5, n_ctx - 1)]
    assert cross.pending(0) is None
    again = generator.add(PROMPT, sampling=sampling, max_tokens=1)
    run(generator)
    assert again.tokens == truth[:1]


def test_settings_may_forbid_all():
    cross = cross_of("head", skill=12)[0]
    generator = Generator(cross, draft=2, prefix_cache="all")
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature, seed=1, logit_bias=ALL)
        request = generator.add(PROMPT, sampling=sampling)
        run(generator)
        assert (request.tokens, request.finish_reason) == ([], "no_token")


def test_the_direct_api_raises_and_changes_nothing():
    truth = plain(PROMPT, WARM, 4)
    cross = cross_of("head", skill=12)[0]
    cross.llm.process(Batch.of(PROMPT))
    with pytest.raises(NoTokenError):
        cross.pending(0, Sampling(seed=1, logit_bias=ALL))
    assert cross.pending(0, WARM) == truth[0]
    before = cross.digest(0)
    for drafts, last in (([], 3), (truth[1:3], 5)):
        with pytest.raises(NoTokenError, match="sequence 0"):
            cross.verify(
                {0: drafts},
                WARM,
                processors={0: lambda tokens, row, n=last: in_place(tokens, row, n + 1)},
            )
        assert cross.digest(0) == before
        assert cross.pending(0) == truth[0]
    forbidding = Sampling(seed=8, logit_bias=ALL)
    with pytest.raises(NoTokenError):
        cross.verify({0: truth[1:3]}, forbidding)
    assert cross.draft(0, 3, forbidding) == []
    assert cross.verify({0: truth[1:3]}, WARM)[0].tokens == tuple(truth[1:4])


def scaled(tokens, logits):
    return logits * np.float32(0.5)


def test_returned_logits_are_those_that_choose():
    """In place of them, or beside a row that was changed; also as a library's own arrays."""

    class Foreign:
        def __init__(self, row):
            self.row = row

        def __dlpack__(self, **options):
            return self.row.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.row.__dlpack_device__()

    def changed(tokens, logits):
        logits *= np.float32(0.5)

    def spoiled(tokens, logits):
        row = logits * np.float32(0.5)
        logits[:] = np.nan
        return row

    texts = []
    for processor in (changed, scaled, spoiled, lambda t, row: Foreign(scaled(t, row))):
        for draft in (0, 4):
            generator = Generator(cross_of("head", skill=12)[0], sampling=WARM, draft=draft)
            request = generator.add(PROMPT, max_tokens=12, logits_processor=processor)
            run(generator)
            texts.append(request.tokens)
    assert all(text == texts[0] for text in texts)
    assert texts[0] != plain(PROMPT, WARM, 12)


@pytest.mark.parametrize(
    "answer",
    [
        lambda row: row.astype(np.float64),
        lambda row: row.astype(np.float16),
        lambda row: row[:-1],
        lambda row: row[None],
        lambda row: row.tolist(),
        lambda row: True,
        lambda row: "nothing",
    ],
)
def test_what_is_no_row_of_logits_is_refused(answer):
    generator = Generator(cross_of("head", skill=12)[0], sampling=WARM, draft=2)
    request = generator.add(PROMPT, logits_processor=lambda tokens, logits: answer(logits))
    with pytest.raises(SamplingError, match="float32"):
        generator.step()
    assert request.tokens == []
