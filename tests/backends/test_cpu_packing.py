"""Runs begin on the mapped file, and weights are packed behind them: no bit shows when."""

import gc
import multiprocessing
import threading

import numpy as np
import pytest
from harness.generated import FAMILIES, NATIVE, Sizes, write_generated
from harness.matrices import assert_same_bits

import mtpcore

LONG = Sizes(n_layers=24)
ROUNDS = 400  # far more than there are matrices, of which each run packs one at least


@pytest.fixture(autouse=True)
def small_is_worth_it(monkeypatch):
    """Let small models begin on the mapped file, too."""
    monkeypatch.setattr("mtpcore.backends.cpu.backend.WORTH_PACKING_BEHIND", 0)


def matrices_of(model):
    made = [made for key, made in model.packed.items() if key[1] != "vector"]
    return [one for some in made for one in (some if isinstance(some, list) else [some])]


def share(model):
    """Return how much of a model is packed, 0 .. 1."""
    shares = [one.packed_share for one in matrices_of(model)]
    return sum(shares) / len(shares)


def logits(context, n=3):
    """Process some tokens in a sequence of its own."""
    context.remove(0)
    return context.process(mtpcore.Batch.of([1 + i % 9 for i in range(n)], outputs="all")).logits


def wanted_of(path, n=3):
    """Return the logits of a model whose weights stay in the file."""
    context = mtpcore.Context(mtpcore.load_model(path, repack=False), 64)
    return logits(context, n)


def partly_packed(path, n_contexts=1):
    """Return a model of which runs have packed a part, and contexts; a slow run may pack all."""
    wanted = wanted_of(path)
    for _ in range(50):
        model = mtpcore.load_model(path)
        contexts = [mtpcore.Context(model, 64) for _ in range(n_contexts)]
        for context in (*contexts, contexts[0]):
            assert_same_bits(logits(context), wanted)
            if 0 < share(model) < 1:
                for each in contexts:
                    assert_same_bits(logits(each, 1), wanted_of(path, 1))
                    if share(model) == 1:
                        break
                else:
                    return model, contexts, wanted
    raise AssertionError("weights were never packed in part")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("family", "kind"), [("llama", kind) for kind in NATIVE] + [(f, "Q4_0") for f in FAMILIES[1:]]
)
def test_bits_are_equal_before_while_and_after_weights_are_packed(family, kind, threads, tmp_path):
    path = write_generated(tmp_path / "model.gguf", family, kind)
    wanted = {n: wanted_of(path, n) for n in (1, 3, 20)}
    model = mtpcore.load_model(path)
    context = mtpcore.Context(model, 64, threads=threads)
    shares = []
    for i in range(ROUNDS):
        n = (1, 3, 20)[i % 3]
        assert_same_bits(logits(context, n), wanted[n])
        shares.append(share(model))
        if shares[-1] == 1:
            break
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares == sorted(shares)
    assert_same_bits(logits(context), wanted[3])
    assert not any(one.is_mapped for one in matrices_of(model))


def test_prepare_packs_all_at_once(tmp_path):
    model = mtpcore.load_model(write_generated(tmp_path / "model.gguf", "llama", "Q8_0"))
    context = mtpcore.Context(model, 64, threads=2)
    context.prepare()
    assert share(model) == 1
    context.prepare()


def test_types_without_kernels_are_converted_before_the_first_run(tmp_path):
    model = mtpcore.load_model(write_generated(tmp_path / "model.gguf", "llama", "TQ2_0"))
    logits(mtpcore.Context(model, 64))
    made = {key[2]: one for key, one in model.packed.items() if key[1] == "matrix"}
    assert made["blk.0.attn_q.weight"].packed_share == 1


@pytest.mark.parametrize("n_contexts", [2, 4])
def test_contexts_in_several_threads_pack_one_model(n_contexts, tmp_path):
    path = write_generated(tmp_path / "model.gguf", "glm4moe", "Q4_K")
    wanted = wanted_of(path)
    for _ in range(4):
        model, wrong, barrier = mtpcore.load_model(path), [], threading.Barrier(n_contexts)

        def use(i, model=model, wrong=wrong, barrier=barrier):
            try:
                context = mtpcore.Context(model, 64, threads=1 + i % 2)
                barrier.wait(60)
                for round_ in range(60):
                    if i == 1 and round_ == 5:
                        context.prepare()
                    if not np.array_equal(logits(context), wanted):
                        wrong.append(i)
            except Exception as error:  # of a thread, told below
                wrong.append(error)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(n_contexts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert share(model) == 1


def test_a_model_that_is_closed_meanwhile_is_packed_on(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    model, (context,), wanted = partly_packed(path)
    matrices = matrices_of(model)
    model.close()
    for _ in range(ROUNDS):
        assert_same_bits(logits(context), wanted)
    assert {one.packed_share for one in matrices} == {1}


def test_a_context_that_goes_meanwhile_leaves_the_rest_to_others(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    model, contexts, wanted = partly_packed(path, 2)
    second = contexts.pop()
    contexts.clear()
    gc.collect()
    for _ in range(ROUNDS):
        assert_same_bits(logits(second), wanted)
    assert share(model) == 1


def in_child(context, wanted, model, said):
    same = [np.array_equal(logits(context), wanted) for _ in range(5)]
    context.prepare()
    said.send((all(same), np.array_equal(logits(context), wanted), share(model)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_meanwhile_packs_the_rest(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    model, (context, own), wanted = partly_packed(path, 2)
    ended = threading.Event()

    def go_on():  # so that a fork may come while a group is being packed
        while not ended.is_set():
            logits(own)

    thread = threading.Thread(target=go_on)
    thread.start()
    forking = multiprocessing.get_context("fork")
    try:
        for _ in range(3):
            reading, writing = forking.Pipe(duplex=False)
            child = forking.Process(target=in_child, args=(context, wanted, model, writing))
            child.start()
            assert reading.poll(60)
            assert reading.recv() == (True, True, 1)
            child.join()
    finally:
        ended.set()
        thread.join()
    assert_same_bits(logits(context), wanted)
