"""How drafts are chosen and where they end: by the head's own logits."""

from itertools import islice, takewhile

import msgspec
import numpy as np
import pytest
from harness.hashed import N_VOCAB, START, advance, logits_of
from harness.scripted import cross_of, plain, run

from mtpcore.decoding import Generator
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampler, Sampling, Scratch

WARM = Sampling(temperature=1.5, seed=3)
PROMPTS = ([3, 1, 4], [1], [5, 9, 2, 6], [8, 8, 0])
P_MINS = (0.15, 0.3, 0.45, 0.7, 1.0)


def head(backend, tokens):
    """The logits of the hashed head after these tokens, the last of them just drafted."""
    state = START
    for token in tokens:
        state = advance(state, token)
    logits = logits_of(state)
    return -logits if backend.misleads(state) else logits


def best(backend, tokens):
    """Yield the head's own best tokens, one after the other, and their probabilities."""
    tokens = list(tokens)
    while True:
        logits = head(backend, tokens).astype(np.float64)
        shares = np.exp(logits - logits.max())
        tokens.append(int(logits.argmax()))
        yield tokens[-1], shares.max() / shares.sum()


def shared(backend, tokens, sampling, n_prompt):
    """Yield what the target's own noise chooses by the head's logits, and the probabilities."""
    tokens, sampler = list(tokens), Sampler(sampling, Scratch(N_VOCAB))
    while True:
        history = np.asarray(tokens, np.int32)
        chosen = sampler.choose_with_probability(
            head(backend, tokens), history, n_prompt, len(tokens)
        )
        tokens.append(chosen[0])
        yield chosen


def cut(pairs, k, p_min=0.0):
    """The first k tokens, up to the first that is less probable."""
    return [token for token, _ in islice(takewhile(lambda one: one[1] >= p_min, pairs), k)]


def warmed(prompts=PROMPTS, skill=10):
    """A Cross with a prompt in each sequence, and the tokens of each, pending one included."""
    cross, backend = cross_of("head", skill=skill)
    for seq, prompt in enumerate(prompts):
        cross.llm.process(Batch.of(prompt, seq=seq))
    texts = {s: [*p, cross.pending(s, WARM)] for s, p in enumerate(prompts)}
    return cross, backend, texts


def test_argmax_drafts_are_the_heads_best_tokens_at_any_temperature():
    cross, backend, texts = warmed()
    wanted = {seq: cut(best(backend, text), 6) for seq, text in texts.items()}
    noisy = {
        seq: cut(shared(backend, text, WARM, len(PROMPTS[seq])), 6) for seq, text in texts.items()
    }
    asked = dict.fromkeys(texts, 6)
    assert cross.draft(asked, sampling=WARM, draft_sampler="argmax") == wanted
    assert cross.draft(asked, sampling=WARM, draft_sampler="coupled") == noisy
    assert cross.draft(asked, sampling=WARM) == noisy
    assert not any(wanted[seq] == noisy[seq] for seq in texts)
    kinds = {0: "argmax", 1: "coupled", 2: "coupled", 3: "argmax"}
    mixed = {seq: wanted[seq] if kind == "argmax" else noisy[seq] for seq, kind in kinds.items()}
    assert cross.draft(asked, sampling=WARM, draft_sampler=kinds) == mixed


@pytest.mark.parametrize("draft_sampler", ["argmax", "coupled"])
def test_p_min_ends_drafts_before_the_first_that_is_less_probable(draft_sampler):
    cross, backend, texts = warmed()
    lengths = set()
    for p_min in P_MINS:
        for seq, text in texts.items():
            pairs = (
                best(backend, text)
                if draft_sampler == "argmax"
                else shared(backend, text, WARM, len(PROMPTS[seq]))
            )
            made = cross.draft(seq, 5, WARM, draft_sampler=draft_sampler, p_min=p_min)
            assert made == cut(pairs, 5, p_min)
            assert made == [] or p_min < 1
            lengths.add(len(made))
    assert len(lengths) > 2


def test_requests_are_drafted_by_their_own_settings_or_the_generators(monkeypatch):
    cross, backend = cross_of("head", skill=10)
    generator = Generator(cross, sampling=WARM, draft=4, draft_sampler="argmax", p_min=0.45)
    settings = [(None, None), ("coupled", 0.3), ("argmax", 0.0), ("coupled", 1.0)]
    made = {
        prompt[0]: (generator.add(prompt, max_tokens=20, draft_sampler=kind, p_min=p_min), i)
        for i, (prompt, (kind, p_min)) in enumerate(zip(PROMPTS, settings, strict=True))
    }
    verify, lengths = cross.speculation.verify, [set() for _ in settings]

    def check(drafts, *rest, **options):
        for seq, draft in drafts.items():
            text = [*cross.tokens(seq), cross.speculation.states[seq].pending]
            request, i = made[text[0]]
            left = 20 - (len(text) - len(request.prompt)) - 1
            noisy = shared(backend, text, WARM, len(request.prompt))
            pairs = noisy if settings[i][0] == "coupled" else best(backend, text)
            p_min = 0.45 if settings[i][1] is None else settings[i][1]
            assert draft == cut(pairs, min(4, left), p_min)
            lengths[i].add(len(draft))
        return verify(drafts, *rest, **options)

    monkeypatch.setattr(cross.speculation, "verify", check)
    run(generator)
    assert all(r.tokens == plain(r.prompt, WARM, 20) for r, _ in made.values())
    assert len(lengths[0]) > 2
    assert len(lengths[1]) > 2
    assert max(lengths[2]) == 4
    assert lengths[3] == {0}


def test_argmax_is_greedy_about_everything_but_penalties():
    """Bias and penalties change what a head finds best, as they change the target's choice."""
    cross, backend, texts = warmed()
    biased = msgspec.structs.replace(WARM, logit_bias={7: 100.0})
    assert cross.draft(0, 4, biased, draft_sampler="argmax") == [7] * 4
    assert cross.draft(0, 4, WARM, draft_sampler="argmax") == cut(best(backend, texts[0]), 4)
