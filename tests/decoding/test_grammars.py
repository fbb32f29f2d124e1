"""Texts in a form: what the target chooses with this mask, however drafted, batched or resumed."""

import re

import msgspec
import numpy as np
import pytest
from harness.grammars import (
    END,
    N_VOCAB,
    PIECES,
    FormedModel,
    Pieces,
    bits,
    formed,
    languages,
    spell,
)
from harness.hashed import START, Planted, advance, logits_of
from harness.scripted import SCRIPTS, TREES, Scripted, cross_of, run, settings
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import Batch, Generator, Grammar, NoTokenError, Sampling, SamplingError, TreeShape
from mtpcore._ext._sampling import NO_TOKEN
from mtpcore.sampling import GrammarCompiler, fill_masks, reference, spell_breakers

pytest.importorskip("llguidance")

COMPILER = GrammarCompiler(Pieces(), N_VOCAB)
PROMPT = [3, 1, 4]
LONG = Sampling(temperature=1.0, seed=8, grammar=Grammar.of_regex("(ab|cd|a){30}"))
N = 24


def in_form(sampling, language):
    return msgspec.structs.replace(sampling, grammar=Grammar.of_regex(spell(language)))


@st.composite
def wants(draw):
    """A request's prompt and settings, most of them with a grammar."""
    sampling = draw(settings())
    if draw(st.integers(0, 4)):
        sampling = in_form(sampling, draw(languages()))
    prompt = draw(st.lists(st.integers(0, END - 1), min_size=1, max_size=9))
    return prompt, sampling


def truth_of(prompt, sampling, n=N):
    """The text by definition, and what it ends with."""
    tokens = formed(prompt, sampling, n, COMPILER)
    if tokens[-1:] == [END]:
        return tokens[:-1], "end"
    return tokens, "length" if len(tokens) == n else "no_token"


@searching(200)
@given(
    wanted=st.lists(wants(), min_size=1, max_size=4),
    drafters=st.lists(
        st.sampled_from(["head", "lookup", *SCRIPTS, *TREES]), max_size=2, unique=True
    ),
    tree=st.sampled_from([None, None, TreeShape(depth=3, width=2, n_nodes=5)]),
    draft=st.sampled_from([0, 1, 4, "auto"]),
    draft_sampler=st.sampled_from(["coupled", "argmax"]),
    n_seq_max=st.integers(1, 3),
    prefix_cache=st.sampled_from([None, "all"]),
    fails=st.sampled_from([None, None, 3, 17]),
)
def test_the_text_is_the_one_of_its_definition(
    wanted, drafters, tree, draft, draft_sampler, n_seq_max, prefix_cache, fails
):
    """Greedy and sampled, by heads, scripts, lookup, trees, in batches, with rounds that fail."""
    truths = [truth_of(*one) for one in wanted]
    texts = [[*prompt, *truth] for (prompt, _), (truth, _) in zip(wanted, truths, strict=True)]
    scripts = {**SCRIPTS, **TREES}
    made = [Scripted(scripts[d], texts) if d in scripts else d for d in drafters]
    tree = tree if drafters == ["head"] else None
    cross, backend = cross_of(*made, model=FormedModel(), n_seq_max=n_seq_max, tree=tree)
    generator = Generator(
        cross, draft=draft, draft_sampler=draft_sampler, prefix_cache=prefix_cache
    )
    backend.fail_at = fails
    requests = [generator.add(p, sampling=s, max_tokens=N) for p, s in wanted]
    while generator.active:
        try:
            generator.step()
        except Planted:
            continue
    for request, (truth, reason) in zip(requests, truths, strict=True):
        assert (request.tokens, request.finish_reason) == (truth, reason)


@searching(80)
@given(
    language=languages(),
    sampling=settings(),
    head=st.booleans(),
    tree=st.sampled_from([None, TreeShape(depth=3, width=2, n_nodes=5)]),
    n_prompt=st.integers(1, 5),
    data=st.data(),
)
def test_acts_of_a_cross_keep_the_form(language, sampling, head, tree, n_prompt, data):
    """Forks, saved states, shifts and drafts that are given up: each choice is the defined one."""
    sampling = in_form(sampling, language)
    cross, _ = cross_of(*["head"] * head, model=FormedModel(), tree=tree if head else None)
    held, text, seq, is_shifted = [3, 1, 4, 1, 5][:n_prompt], [], 0, False
    cross.llm.process(Batch.of(held, seq=seq))
    for _ in range(8):
        wanted = chosen_after(held, text, n_prompt, sampling)
        if wanted == NO_TOKEN and not is_shifted:
            with pytest.raises(NoTokenError):
                cross.pending(seq, sampling)
            break
        assert is_shifted or cross.pending(seq, sampling) == wanted
        wanted, is_shifted = cross.pending(seq), False  # one that is pending stays
        if wanted == END:
            break
        try:
            draft = cross.draft(seq, data.draw(st.integers(0, 4)), sampling)
            verdict = cross.verify({seq: draft}, sampling)[seq]
        except NoTokenError:  # after drafts that it accepts
            break
        n = data.draw(st.integers(0, verdict.accepted))
        cross.accept(seq, n)
        held, text = (
            held + list(verdict.committed[: n + 1]),
            text + list(verdict.committed[: n + 1]),
        )
        if END in text:
            break
        act = data.draw(st.sampled_from(["none", "fork", "save", "shift"]))
        if act == "fork":
            cross.fork(seq, seq + 1)
            cross.remove(seq)
            cross.fork(seq + 1, seq)
            cross.remove(seq + 1)
        elif act == "save":
            state = cross.save(seq)
            cross.remove(seq)
            assert cross.load(seq, state) == sampling
        elif act == "shift":
            keep = data.draw(st.integers(0, len(held) - 1))
            drop = data.draw(st.integers(0, len(held) - keep - (keep == 0)))
            cross.shift(seq, keep=keep, drop=drop)
            is_shifted = True
            del held[keep : keep + drop]
            n_prompt = min(n_prompt, keep) + max(n_prompt - keep - drop, 0)


def chosen_after(held, text, n_prompt, sampling):
    """The choice after ``held``, of which the tokens after the prompt are, or end, the text."""
    state = START
    for token in held:
        state = advance(state, token)
    asked = COMPILER.matcher(sampling.grammar), np.array(text, np.int32), ()
    mask = bits(fill_masks([asked])[0][0])
    history = np.array(held, np.int32)
    given = sampling, logits_of(state), history, n_prompt, len(held)
    return reference.choose(*given, allowed=mask, breakers=spell_breakers(sampling, None))


def generated(sampling, draft, drafter="head", n=60, **options):
    cross = cross_of(drafter, skill=14, model=FormedModel())[0]
    generator = Generator(cross, sampling=sampling, draft=draft)
    request = generator.add(PROMPT, max_tokens=n, **options)
    run(generator)
    return request, generator.stats


def test_what_is_forced_is_drafted_first():
    sampling = msgspec.structs.replace(LONG, grammar=Grammar.of_regex("(abcdabcddd|cdcdcdab){5}"))
    plainly, _ = generated(sampling, 0)
    request, stats = generated(sampling, 4)
    assert (request.text, request.tokens) == (plainly.text, plainly.tokens)
    drafts, drafted, accepted = stats.drafters["grammar"]
    assert drafts
    assert drafted == accepted  # of what must follow one spelling is allowed
    assert request.n_passes < plainly.n_passes / 2


def test_what_is_forced_is_drafted_without_a_drafter():
    sampling = msgspec.structs.replace(LONG, grammar=Grammar.of_regex("(abcdabcddd|cdcdcdab){5}"))
    cross = cross_of(model=FormedModel())[0]
    for draft in (3, "auto"):
        generator = Generator(cross, sampling=sampling, draft=draft)
        request = generator.add(PROMPT, max_tokens=60)
        run(generator)
        assert request.tokens == generated(sampling, 0)[0].tokens
        assert [*generator.stats.drafters] == ["grammar"]
        assert generator.stats.accepted


def test_forbidden_drafts_are_cut():
    """None of them is verified, so the target's pass is as short as it can be."""
    grammar = Grammar.of_regex("(a|b)*")
    script = Scripted(lambda truth, k: [0, 1, 0, 6, 2][:k], [[]])
    model = FormedModel()
    seen = []
    cross = cross_of(script, model=model)[0]
    cross.llm.process(Batch.of(PROMPT, seq=0))
    sampling = Sampling(seed=1, grammar=grammar)
    for k in range(6):
        seen.append(cross.draft(0, k, sampling))
    assert [len(draft) for draft in seen] == [0, 1, 2, 3, 4, 4]  # "ba" may follow, "c" may not


@pytest.mark.parametrize("draft", [0, 3])
def test_a_form_in_which_nothing_is_left_ends_the_text(draft):
    biases = dict.fromkeys(range(N_VOCAB), -np.inf) | {0: 0.0}
    sampling = Sampling(seed=3, grammar=Grammar.of_regex("(a|b)(c|d)"), logit_bias=biases)
    request, _ = generated(sampling, draft)
    assert (request.text, request.finish_reason) == ("a", "no_token")


@pytest.mark.parametrize("draft", [0, 3])
def test_what_follows_an_end_token_has_any_form(draft):
    sampling = Sampling(temperature=1.0, seed=3, grammar=Grammar.of_regex("ab"))
    request, _ = generated(sampling, draft, ignore_eos=True, n=12)
    assert request.tokens[: request.tokens.index(END)] == Pieces().encode("ab")
    assert len(request.tokens) == 12


def test_a_grammar_beside_processor_logprobs_and_stop():
    """They see the same tokens with and without drafts, and a stop string cuts the form."""
    seen = {}
    for draft in (0, 3):
        calls = seen[draft] = []

        def watch(tokens, logits, calls=calls):
            calls.append(tokens.tolist())
            logits[PIECES.index("ab")] += 2

        request, _ = generated(LONG, draft, logits_processor=watch, logprobs=1, stop="cdcd")
        calls += [request.text, request.logprobs, request.finish_reason]
    assert seen[0] == seen[3]
    assert len(seen[0]) > 8


def test_a_grammar_that_cannot_be_used_is_refused_with_the_request():
    generator = Generator(cross_of(model=FormedModel())[0])
    with pytest.raises(SamplingError) as caught:
        generator.add(PROMPT, sampling=Sampling(grammar="start: gone"))
    assert "gone" in str(caught.value)
    assert not generator.active


def test_a_shifted_text_keeps_its_form():
    """The whole text has it, the tokens that were dropped included."""
    truth = "(ab|cd|a){30}"
    for draft in (0, 3):
        cross = cross_of("head", model=FormedModel(), n_ctx=14)[0]
        generator = Generator(cross, sampling=LONG, draft=draft)
        request = generator.add(PROMPT, max_tokens=200, when_full="shift")
        run(generator)
        assert request.n_shifts > 2
        assert request.finish_reason == "end"
        assert re.fullmatch(truth, request.text)
