"""What contexts of one model share, and that several threads may use them at once."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, Thread

import pytest
import toy

from mtpcore import (
    Batch,
    BatchError,
    Context,
    Generator,
    LinkError,
    Model,
    Sampling,
    link,
    load_model,
)
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.discovery.registry import registry

N_THREADS = 4
PROMPT = "def read_config(path):"
FILES = ["demo", "demo:deepseek", "demo:mimo2", "demo:eagle3"]


def at_once(*calls):
    """Run each call in a thread, all from one moment on; return what they returned."""
    start = Barrier(len(calls))

    def run(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(run, call) for call in calls]]


@pytest.fixture(autouse=True)
def short_turns():
    """Let threads take turns often: what two of them do is mixed finely."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def write(model, draft_model, stream):
    """Return logits, a text written with drafts, and the digests after it."""
    tokens = model.tokenizer.encode(PROMPT)
    plain = Context(model, 128, threads=2).process(Batch.of(tokens, outputs="all"))
    cross = link(Context(model, 128, threads=1 + stream % 2), draft_model=draft_model)
    sampling = Sampling(temperature=1.0, seed=5, stream=stream)
    cross.llm.process(Batch.of(tokens))
    for _ in range(6):
        cross.verify({0: cross.draft(0, 3, sampling)}, sampling)
        cross.accept(0)
    digest = cross.digest(0)
    cross.remove(0)
    text = [*Generator(cross, draft=3, sampling=sampling).generate(tokens, max_tokens=20)]
    return plain.logits.tobytes(), text, digest


def load(name):
    return load_model(name), load_model("demo:eagle3-draft") if name == "demo:eagle3" else None


@pytest.mark.parametrize("name", FILES)
def test_contexts_in_threads_make_the_bits_that_they_make_alone(name):
    """From the first context on, so that programs, packed weights and tokenizer are made then."""
    alone = [write(*load(name), stream) for stream in range(N_THREADS)]
    shared = load(name)
    assert at_once(*(partial(write, *shared, stream) for stream in range(N_THREADS))) == alone


def test_models_may_be_loaded_at_once():
    registry.cache_clear()
    found = at_once(*[lambda: write(*load("demo"), 0)] * N_THREADS)
    assert found == [write(*load("demo"), 0)] * N_THREADS


@pytest.mark.parametrize("name", ["demo", "demo:eagle3"])
def test_each_weight_is_packed_once_and_each_program_is_built_once(monkeypatch, name):
    model, draft_model = load(name)  # builds programs too, a drafter's without what it borrows
    packed, built = Counter(), Counter()
    pack, build = CpuWeights._pack, Model._build

    def count_pack(self, weight, form):
        packed[self._source.tensors[weight.tensor], form] += 1  # a borrowed one is the same
        return pack(self, weight, form)

    def count_build(self, kind, taps, *rest):
        built[self, kind.name, taps, rest[0].name, rest[2]] += 1
        return build(self, kind, taps, *rest)

    monkeypatch.setattr(CpuWeights, "_pack", count_pack)
    monkeypatch.setattr(Model, "_build", count_build)
    at_once(
        *[lambda: link(Context(model, 64, threads=1), draft_model=draft_model).prepare()]
        * N_THREADS,
        *[lambda: Context(model, 64, threads=2).prepare()] * N_THREADS,
    )
    assert set(packed.values()) == set(built.values()) == {1}


def test_a_link_that_fails_takes_nothing_from_another_thread_s():
    """Both borrow the target's tables for one draft model; the first to fail gives them back."""
    for _ in range(4):
        target, head = load("demo:eagle3")

        def fail(target=target, head=head):
            with pytest.raises(LinkError):
                link(Context(target, 64, threads=1), ["auto", 5], draft_model=head)

        def succeed(target=target, head=head):
            return link(Context(target, 64, threads=1), draft_model=head)

        *_, cross = at_once(fail, fail, succeed)
        assert head.target is target
        assert Context(head, 64, graph_type="draft", threads=1).model is head
        cross.llm.process(Batch.of([1, 2, 3]))
        cross.pending(0, Sampling.greedy())
        assert cross.draft(0, 3)


def test_a_tokenizer_serves_several_threads():
    model = load_model("demo")
    texts = [PROMPT * n + "é€\n" for n in range(1, 9)]
    wanted = [load_model("demo").tokenizer.encode(text) for text in texts]

    def read(text):
        tokens = [model.tokenizer.encode(text) for _ in range(20)]
        assert all(model.tokenizer.decode(one) == text for one in tokens)
        assert tokens == tokens[:1] * 20
        return tokens[0]

    assert at_once(*(partial(read, text) for text in texts)) == wanted


def test_a_model_that_is_closed_meanwhile_leaves_contexts_whole_or_unmade(tmp_path):
    """A context that has planned goes on; one that plans is ready, or an error says why."""
    found = Counter()
    for _ in range(12):
        model = toy.load(tmp_path, toy.trunk_tensors())

        def make(model=model):
            try:
                context = Context(model, 64, threads=1)
                context.prepare()
            except Exception as error:
                return type(error).__name__
            return context.process(Batch.of([1, 2])).logits.tobytes()

        *made, _ = at_once(make, make, make, model.close)
        found.update(made)
    assert len(found) <= 2
    assert {one for one in found if isinstance(one, str)} <= {"ModelFileError"}


def test_a_batch_that_its_owner_writes_to_meanwhile_is_read_as_it_was():
    """The writer is let in where the pass gives up the GIL, when all has been checked."""
    model, n = load_model("demo"), 2000
    llm = Context(model, n, n_batch=n, threads=1)
    wanted = llm.process(Batch.of([7] * n)).logits.tobytes()
    sys.setswitchinterval(60.0)
    read = 0
    for _ in range(20):
        llm.remove(0)
        batch, go = Batch.of([7] * n), Event()

        def write(batch=batch, go=go):
            go.wait()
            for column in (batch.tokens, batch.seq):
                column[:] = 10**9

        writer = Thread(target=write)
        writer.start()
        go.set()
        try:
            output = llm.process(batch)
        except BatchError:  # it was let in before
            continue
        finally:
            writer.join()
        assert output.logits.tobytes() == wanted
        read += 1
        if read == 3:
            break
    assert read
