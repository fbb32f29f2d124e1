"""The trained fixtures of the NextN families against references that other engines computed."""

import mtpcore_deepseek_mtp
import mtpcore_glm_nextn
import numpy as np
import pytest
from harness.fixtures import counts, model_file, references

from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.testing import Runner

PLUGINS = {"ds-12": mtpcore_deepseek_mtp, "glm-11": mtpcore_glm_nextn}
BACKENDS = {"cpu": CpuBackend, "reference": ReferenceBackend}
N_PROMPT = 48
NEAR_TIE = 1e-3
"""Below this distance of the two best logits another rounding may choose differently."""


class Family:
    """Trunk and head of one file, with memories of their own."""

    def __init__(self, name, outtype="f16", backend=None):
        self.name, self.backend = name, backend or ReferenceBackend()
        plugins = Registry.of(PLUGINS[name])
        self.model = load_model(model_file(name, outtype), plugins=plugins)
        self.trunk, self.head = self.runner("llm", ["hidden"]), self.runner("draft")

    def runner(self, graph_type, taps=()):
        program = self.model.program(graph_type, taps=taps)
        return Runner(self.backend, program, self.model, n_seq=6)


@pytest.fixture(scope="module", params=[(name, b) for name in PLUGINS for b in BACKENDS], ids=str)
def family(request):
    name, backend = request.param
    return Family(name, backend=BACKENDS[backend]())


@pytest.fixture(scope="module")
def refs(family):
    return references(family.name)


@pytest.fixture(scope="module")
def texts(family, refs):
    """Trunk outputs over each prompt and its greedy continuation but the last token."""
    return [
        family.trunk.feed(np.concatenate([refs["prompts"][i], refs["greedy"][i, :-1]]), seq=i)
        for i in range(len(refs["prompts"]))
    ]


def test_hparams(family):
    h = family.model.hparams
    assert (h.n_layers, h.n_drafter_blocks, h.n_vocab, h.width) == (4, 1, 2048, 160)
    assert h.experts.n_used == 2
    assert h.experts.normalise
    assert h.rotary_axes == 1


def test_trunk_matches_the_references(texts, refs):
    for i in range(len(refs["logits"])):
        assert np.abs(texts[i]["logits"][:N_PROMPT] - refs["logits"][i]).max() < 2e-4
        assert np.abs(texts[i]["hidden"][:N_PROMPT] - refs["hidden"][i]).max() < 2e-4


def test_greedy_text(texts, refs):
    for i, text in enumerate(texts):
        assert text["logits"][N_PROMPT - 1 :].argmax(axis=1).tolist() == refs["greedy"][i].tolist()


def test_one_by_one_gives_the_same_bits(family, texts, refs):
    """Row by row, in a sequence of its own, with outputs of some rows only."""
    runner = family.runner("llm", ["hidden"])
    tokens = np.concatenate([refs["prompts"][1], refs["greedy"][1, :8]])
    runner.feed(tokens[:20], seq=3, outputs=[])
    for t in range(20, len(tokens)):
        made = runner.feed(tokens[t : t + 1], seq=3)
        assert np.array_equal(made["logits"][0], texts[1]["logits"][t])
        assert np.array_equal(made["hidden"][0], texts[1]["hidden"][t])


@pytest.fixture(scope="module")
def drafts(family, texts, refs):
    """The table of drafts, rebuilt: true pairs for accepted positions, then the head feeds itself.

    Token p meets hidden row p - 1; there is no pair for the first token.
    """
    made = np.zeros_like(refs["drafts"])
    for i, text in enumerate(texts):
        tokens = np.concatenate([refs["prompts"][i], refs["greedy"][i]])
        warm_up = slice(1, N_PROMPT)
        family.head.feed(
            tokens[warm_up], seq=i, place=1, outputs=[], hidden=text["hidden"][: N_PROMPT - 1]
        )
        for row in range(made.shape[1]):
            place = N_PROMPT + row
            token, hidden = tokens[place], text["hidden"][place - 1]
            for step in range(made.shape[2]):
                out = family.head.feed([token], seq=i, hidden=hidden[None])
                token, hidden = out["logits"][0].argmax(), out["hidden"][0]
                made[i, row, step] = token
            # The pair of the accepted token is a true one and stays, the others were drafted.
            family.head.memory.rewind(i, place + 1)
    return made


def test_drafts(drafts, refs):
    """A draft that differs had a near tie, or follows one in its own run of drafts."""
    differs = drafts != refs["drafts"]
    excused = np.logical_or.accumulate(refs["draft_margin"] < NEAR_TIE, axis=2)
    assert not (differs & ~excused).any()
    assert excused.mean() < 0.02


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_acceptance_counts(family, drafts, refs, k):
    wanted = counts(family.name)[f"k={k}"]
    per_position, steps = np.zeros(k, int), 0
    for table, greedy in zip(drafts, refs["greedy"], strict=True):
        i = 0
        while i < len(greedy) - 1 - k:
            accepted = 0
            while accepted < k and table[i, accepted] == greedy[i + 1 + accepted]:
                per_position[accepted] += 1
                accepted += 1
            steps += 1
            i += accepted + 1
    assert (drafts == refs["drafts"]).all(), "a near tie fell the other way: allow for it here"
    assert steps == wanted["verify_steps"]
    assert per_position.tolist() == wanted["accepted_per_position"]


@pytest.mark.parametrize("name", PLUGINS)
def test_quantised_file_stays_close(name):
    """Int8 weights and activations change logits a little, and the text of this model hardly."""
    tokens = references(name)["prompts"][0]
    plain = Family(name, "q8_0").trunk.feed(tokens)["logits"]
    as_kernels = Family(name, "q8_0", ReferenceBackend(quantise_activations=True))
    made = as_kernels.trunk.feed(tokens)["logits"]
    error = np.sqrt(np.mean((made - plain) ** 2) / np.mean(plain**2))
    assert 1e-4 < error < 1e-2
