"""Drafting on the device changes no text, and what was rejected leaves no trace.

Small models with random weights: all families of heads, a sliding window, experts, latent
attention, blocks, trees, and recurrent layers in trunk and head. Sampled drafts agree because both
choose by the same noise.
"""

import msgspec
import pytest
from harness import dflash, hybrid_family
from harness.draft_adapters import subject_of
from harness.fixtures import model_file
from harness.generated_heads import EAGLE3, write_drafter, write_family
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Cross, Generator
from mtpcore.declarations.spec import TreeShape
from mtpcore.sampling import Sampling
from mtpcore.testing import Subject, Texts, check_texts
from mtpcore.testing.machine import machine_of

HEADS = {
    "glm4moe": "glm_nextn",
    "deepseek2": "deepseek_mtp",
    "mimo": "mimo_mtp",
    "mimo2": "mimo2_mtp",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "hybrid": "hybrid_head",
    "adapter": "adapted",
}
TREE = TreeShape(depth=3, width=3, n_nodes=7)
SAMPLED = Sampling(temperature=1.2, seed=3)
CUT = Sampling(temperature=0.9, top_k=20, repetition_penalty=1.2, frequency_penalty=0.1, seed=4)
HOST = Sampling(
    temperature=0.9,
    seed=4,
    top_n_sigma=3.0,
    typical_p=0.95,
    xtc_probability=0.5,
    xtc_threshold=0.01,
    dynatemp_range=0.3,
    dry_multiplier=0.8,
    dry_sequence_breakers=(3,),
)
N_DRAFTS = 4


@pytest.fixture(scope="module")
def subject(backend, tmp_path_factory):
    """Return what makes a subject on the device, by the name of its family."""
    folder, made = tmp_path_factory.mktemp("speculation"), {}

    def write(name):
        path = folder / f"{name}.gguf"
        if name == "hybrid":
            return hybrid_family.subject(folder)
        if name == "qwen35moe":
            return Subject(name, str(model_file("qwen35moe-17")), drafter="qwen_mtp")
        if name == "adapter":
            return subject_of(folder, write_family(path, "llama", "Q8_0"))
        if name == "eagle3":
            target = write_family(path, "llama", "Q8_0")
            head = write_drafter(folder / "head.gguf", EAGLE3, "Q8_0")
            return Subject(name, str(target), str(head))
        if name in ("dflash", "dspark", "xpress"):
            target = dflash.write_target(folder)
            c = dflash.VARIANTS["z-lab" if name == "dflash" else name]
            drafter = dflash.write_drafter(folder / name, c)
            return Subject(name, str(target), str(drafter))
        return Subject(name, str(write_family(path, name, "Q8_0")))

    def make(name):
        if name not in made:
            made[name] = msgspec.structs.replace(write(name), backend=backend)
        return made[name]

    return make


def as_tree(subject):
    return msgspec.structs.replace(subject.spec, shape="tree", tree=TREE)


@pytest.mark.parametrize("name", HEADS)
def test_texts_do_not_depend_on_drafts(subject, name):
    """Greedy and sampled; of one request and of several, whole batches and parts of them."""
    family = subject(name)
    assert family.spec.name == HEADS[name]
    few = {"n_tokens": 8, "n_prompt": 5}
    rates = [
        check_texts(family, Texts(k=5, n_texts=1, n_batch=4, **few)),
        check_texts(family, Texts(k=3, sampling=SAMPLED, n_texts=3, n_batch=64, **few)),
    ]
    if name in ("glm4moe", "dflash", "hybrid"):  # how cuts and penalties choose is the same for all
        rates += [check_texts(family, Texts(k=2, sampling=CUT, n_texts=2, n_batch=64, **few))]
    assert max(rates) > 0.05, "hardly a draft is accepted: the comparison says little"


@pytest.mark.parametrize("draft", [0, 2])
def test_texts_that_the_host_chooses_change_no_others(subject, draft):
    """One text with settings that only the host knows, beside one that the device chooses."""
    family = subject("glm4moe")

    def texts(cross, *drafts):
        generator = Generator(cross)
        requests = [
            generator.add([3, 9, 4], sampling=sampling, draft=n, max_tokens=8, ignore_eos=True)
            for sampling, n in zip((SAMPLED, HOST), drafts, strict=True)
        ]
        while generator.active:
            generator.step()
        return [request.tokens for request in requests]

    plain = Cross(llm=family.context(n_seq_max=2, n_batch=64))
    assert texts(family.link(n_seq_max=2, n_batch=64), 2, draft) == texts(plain, 0, 0)


@pytest.mark.parametrize("name", ["glm4moe", "hybrid"])
def test_texts_do_not_depend_on_trees(subject, name):
    family = subject(name)
    for sampling in (Sampling.greedy(), SAMPLED):
        texts = Texts(k=3, sampling=sampling, n_texts=2, n_tokens=8, n_prompt=5, n_batch=64)
        check_texts(family, texts, as_tree(family))


@pytest.mark.parametrize("name", [*HEADS, "dspark", "xpress"])
def test_any_number_of_drafts_is_taken_back(subject, name):
    """Forks of two sequences in one batch, of which one accepts m drafts, the other all but m."""
    family = subject(name)
    cross = family.link(96, n_seq_max=6, n_batch=64)
    prompts = [family.text(n, seed=n).tolist() for n in (62, 5)]  # pages have 64 places
    for seq, prompt in enumerate(prompts):
        cross.llm.process(Batch.of(prompt, seq=seq))
    texts, digests = ([], []), ([], [])

    forks = {0: 2, 1: 3}
    for seq, fork in forks.items():
        cross.fork(seq, fork)
    for _ in range(N_DRAFTS + 2):
        for seq, fork in forks.items():
            texts[seq].append(cross.pending(fork, SAMPLED))
        cross.verify(dict.fromkeys(forks.values(), ()), SAMPLED)
        for fork in forks.values():
            cross.accept(fork, 0)

    for seq, text in enumerate(texts):
        fresh = 4 + seq
        cross.fork(seq, fresh)
        for n in range(N_DRAFTS + 1):
            cross.llm.process(Batch.of([text[n]], seq=fresh, pos=len(prompts[seq]) + n))
            digests[seq].append(cross.digest(fresh))

    for m in range(N_DRAFTS + 1):
        n_right, drafts = (m, N_DRAFTS - m), {}
        for seq, fork in forks.items():
            cross.remove(fork)
            cross.fork(seq, fork)
            assert cross.pending(fork, SAMPLED) == texts[seq][0]
            cross.draft(fork, 2, sampling=SAMPLED)
            right, n = texts[seq][1 : 1 + N_DRAFTS], n_right[seq]
            drafts[fork] = [*right[:n], *((one + 1) % 40 for one in right[n:])]
        verdicts = cross.verify(drafts, SAMPLED)
        for seq, fork in forks.items():
            n = n_right[seq]
            assert verdicts[fork].accepted == n
            assert verdicts[fork].next_token == texts[seq][n + 1]
            cross.accept(fork, n)
            assert cross.digest(fork) == digests[seq][n], (m, seq)


def test_rows_that_wait_on_the_device_are_saved(subject):
    family = subject("glm4moe")
    cross = family.link(32, n_seq_max=2, n_batch=16)
    cross.llm.process(Batch.of(family.text(5).tolist()))
    cross.load(1, cross.save(0))
    assert cross.digest(1) == cross.digest(0)
    drafts = [cross.draft(seq, 2, sampling=SAMPLED) for seq in (0, 1)]
    assert drafts[0] == drafts[1]


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("name", "n_examples"),
    [*((name, 2) for name in HEADS), ("glm4moe as a tree", 2), ("qwen35moe", 1), ("xpress", 1)],
)
def test_a_rejected_draft_leaves_no_trace(subject, name, n_examples):
    """After any acts: fork, remove, save and load, roll back, and interruptions."""
    family = subject(name.removesuffix(" as a tree"))
    drafter = as_tree(family) if name.endswith("tree") else None
    few = searching(n_examples, stateful_step_count=8, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(family, drafter), settings=few)
