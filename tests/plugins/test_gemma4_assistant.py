"""Gemma 4's assistant against transformers', and what must hold of every drafter."""

import json

import msgspec
import numpy as np
import pytest
from harness import gemma4
from harness.fixtures import DATA
from harness.gemma4_pairs import write_pair
from harness.search import searching
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import (
    Batch,
    Context,
    Cross,
    Generator,
    GraphError,
    Image,
    LinkError,
    Prompt,
    Sampling,
    TreeShape,
    link,
    load_model,
)
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.conversion import convert
from mtpcore.drafting.drafters import DraftJob
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_broken_rows,
    check_drafts,
    check_graphs,
    check_readers,
    check_rows,
    check_texts,
    cover_texts,
)
from mtpcore.testing.machine import machine_of

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4


@pytest.fixture(scope="module", params=gemma4.ASSISTANTS)
def pair(request, tmp_path_factory):
    """Return the subject of a pair, and its references."""
    target, drafter = write_pair(tmp_path_factory.mktemp("pair"), request.param)
    with np.load(DATA / "gemma4" / "refs.npz") as file:
        refs = {
            name.partition("/")[2]: file[name] for name in file if name.startswith(request.param)
        }
    return Subject(f"assistant, {request.param}", str(target), str(drafter)), refs


def drafter_of(cross):
    """Return what drafts."""
    (drafter,) = cross.speculation.drafters.values()
    return drafter


@backends
def test_rows_of_every_step(pair, backend):
    """Logits and recycled rows after every prefix, within windows and beyond; one batch of all.

    Steps after the first read the reference's own draft, and the row that the step before made.
    """
    subject, refs = pair
    cross = subject.link(kv_dtype="f32", threads=1, backend=backend, n_seq_max=len(refs["n"]))
    text, jobs = gemma4.tokens(), []
    for seq, n in enumerate(refs["n"].tolist()):
        cross.llm.process(Batch.of(text[:n], seq=seq))
        jobs.append(DraftJob(seq, text[: n + 1], n, 4, sampler=None))
    drafter = drafter_of(cross)
    batch, (slot,) = drafter.batch(jobs), (feed.slot for feed in drafter.spec.feeds)
    for step in range(refs["drafts"].shape[1]):
        found = drafter.runner.plan.run(batch, drafter.runner.lent)
        logits, wanted = found["logits"], refs["logits"][:, step]
        held = np.isfinite(logits)
        assert np.abs(logits - wanted)[held].max() < CLOSE
        assert (logits[~held] == -np.inf).all()
        assert np.abs(found["hidden"] - refs["hidden"][:, step]).max() < CLOSE
        check_held(subject, held, wanted)
        batch = msgspec.structs.replace(
            batch,
            tokens=np.ascontiguousarray(refs["drafts"][:, step], np.int32),
            slots={slot: found["hidden"].copy()},
        )


def check_held(subject, held, wanted):
    """Compare which logits a head with clusters makes with those that transformers made."""
    n_clusters = gemma4.ASSISTANTS[subject.name.partition(", ")[2]].n_clusters
    n_held = 3 * gemma4.N_VOCAB // n_clusters if n_clusters else gemma4.N_VOCAB
    assert (held.sum(1) == n_held).all()
    for row, own in zip(wanted, held, strict=True):  # transformers gives one value to the others
        assert own.all() or np.ptp(row[~own]) == 0


def drafts_after(cross, text, n, k):
    """Return what is drafted after n tokens, with the next one of the text pending."""
    begin = cross.llm.length(0)
    cross.llm.process(Batch.of(text[begin:n], pos=begin))
    cross.pending(0, Sampling(temperature=0.0, logit_bias={int(text[n]): 1e4}))
    return [int(token) for token in cross.draft(0, k, Sampling.greedy())]


@backends
def test_drafts_are_those_of_transformers(pair, backend):
    """Four steps at one position, each with the row that the one before made."""
    subject, refs = pair
    cross = subject.link(kv_dtype="f32", threads=1, backend=backend)
    for n, wanted in zip(refs["n"].tolist(), refs["drafts"].tolist(), strict=True):
        assert drafts_after(cross, gemma4.tokens(), n, len(wanted)) == wanted


def test_graphs_and_rows(pair):
    """Bits: the target's graphs, then the assistant's rows, over threads, types and company."""
    subject, _ = pair
    assert check_graphs(subject, threads=2) > 500
    check_rows(subject, Batching(chunk=7, n_batch=5, threads=2, neighbours=2))
    for kv_dtype, threads in (("f16", 1), ("f32", 2), ("q8_0", 3)):
        n = check_readers(subject, kv_dtype=kv_dtype, threads=threads)
        assert n == 6


def test_drafts_are_those_of_the_definition(pair):
    subject, _ = pair
    assert check_drafts(subject, n_tokens=12) == 72


def test_texts_do_not_depend_on_drafts(pair):
    subject, _ = pair
    rates = [check_texts(subject, texts) for texts in cover_texts(n_tokens=10)[::4]]
    assert max(rates) > 0
    for sampling, n_batch in ((Sampling.greedy(), 512), (Sampling(temperature=1.2, seed=5), 2)):
        check_texts(subject, Texts(k=4, sampling=sampling, n_batch=n_batch))


def test_rows_that_are_not_finite(pair):
    subject, _ = pair
    assert check_broken_rows(subject, 0) == 0
    assert check_broken_rows(subject, 20) > 0


@pytest.mark.hypothesis
def test_state_does_not_depend_on_what_was_rejected(pair):
    subject, _ = pair
    few = searching(4, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine_of(subject), settings=few)


def test_the_assistant_owns_nothing(pair, tmp_path):
    """Its context has no memory, and saved states have nothing of it; they go on all the same."""
    subject, _ = pair
    cross, text = subject.link(n_seq_max=2), gemma4.tokens(30)
    cross.llm.process(Batch.of(text))
    drafts = cross.draft(0, 4)
    context = cross.contexts["draft"]
    assert context.runner.memory is None
    assert context.length(0) == 0
    assert context.runner.lent is cross.llm.runner.memory
    cross.fork(0, 1)
    assert cross.draft(1, 4) == drafts
    cross.save(0, tmp_path / "state")
    other = subject.link()
    other.load(0, tmp_path / "state")
    assert other.draft(0, 4) == drafts
    cross.remove(1)
    cross.rollback(0, 12)
    cross.llm.process(Batch.of(text[12:], pos=12))
    assert cross.draft(0, 4) == drafts


def test_a_prefix_cache_shares_the_target_alone(pair):
    subject, _ = pair
    prompt = gemma4.tokens(40).tolist()
    sampling = Sampling(temperature=0.8, seed=3)

    def text(cache):
        cross = subject.link(n_seq_max=3)
        generator = Generator(cross, sampling=sampling, draft=3, prefix_cache=cache)
        return [list(generator.generate(prompt, max_tokens=12, ignore_eos=True)) for _ in range(2)]

    assert text("all") == text(None)


def test_drafts_go_on_after_rows_that_are_not_tokens(pair):
    """They read what the target stored of the rows, whose positions they need not know."""
    subject, _ = pair
    text = gemma4.tokens(20)
    width = subject.model.hparams.width
    rows = np.random.default_rng(4).normal(size=(9, width)).astype(np.float32)
    prompt = Prompt(text[:8].tolist(), Image(rows, nx=3, ny=3), text[8:].tolist())
    found = []
    for draft in (0, 3):
        generator = Generator(subject.link(), sampling=Sampling(seed=9), draft=draft)
        found.append(list(generator.generate(prompt, max_tokens=24, ignore_eos=True)))
    assert found[0] == found[1]
    assert generator.stats.drafted > 0
    assert generator.stats.paused == 0
    drafts = []
    for backend in ("cpu", "reference"):
        cross = subject.link(kv_dtype="f32", threads=1, backend=backend)
        cross.llm.process(prompt.batch(n_axes=cross.llm.program.n_axes))
        drafts.append([int(token) for token in cross.draft(0, 4)])
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 4


def test_a_file_beside_the_target_is_found(tmp_path):
    target, _ = write_pair(tmp_path, "all tokens")
    with load_model(target) as model:
        cross = link(Context(model, 64))
        assert drafter_of(cross).spec.name == "gemma4_assistant"
    (tmp_path / "mtp-gemma.gguf").unlink()
    with load_model(target) as model:
        assert model.open_draft_model() is None


def test_what_the_loop_cannot_do_is_refused(pair, tmp_path):
    subject, _ = pair
    tree = TreeShape(depth=2, width=2, n_nodes=4)
    with pytest.raises(LinkError, match="drafts a chain"):
        link(subject.context(), draft_model=subject.draft_model, tree=tree)
    link(subject.context(), draft_model=subject.draft_model)  # lends what the next one needs
    context = subject.context(backend=ReferenceBackend())
    drafting = Context(subject.draft_model, 256, graph_type="draft", backend="cpu")
    with pytest.raises(LinkError, match="cannot be read"):
        Cross(llm=context, draft=drafting)


def test_no_target_no_graph(tmp_path):
    _, drafter = write_pair(tmp_path, "clusters")
    with (
        load_model(drafter) as model,
        pytest.raises(GraphError, match="no target is linked") as caught,
    ):
        model.program("draft")
    assert "link the two" in str(caught.value)


def test_assistants_of_the_unified_class(tmp_path):
    """Which is transformers' other one by another name."""
    _, drafter = write_pair(tmp_path, "all tokens")
    config = gemma4.assistant_config(gemma4.ASSISTANTS["all tokens"])
    config |= {"architectures": ["Gemma4UnifiedAssistantForCausalLM"]}
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "drafter", tmp_path / "o.gguf", outtype="f32", target=tmp_path / "target")
    assert (tmp_path / "o.gguf").read_bytes() == drafter.read_bytes()
