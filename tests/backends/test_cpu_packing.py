"""Runs begin on the mapped file, and weights are packed after them: no bit shows when."""

import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from harness.generated import FAMILIES, NATIVE, Sizes, write_generated
from harness.interrupted import raising_alarms
from harness.matrices import assert_same_bits

import mtpcore
from mtpcore._ext._plan import HAS_ASAN
from mtpcore.backends.cpu import weights
from mtpcore.cli import main
from mtpcore.errors import CapacityError

LONG = Sizes(n_layers=24)
ROUNDS = 400  # far more than there are matrices, of which each run packs one at least


@pytest.fixture(autouse=True)
def small_is_worth_it(monkeypatch):
    """Let small models begin on the mapped file, too."""
    monkeypatch.setattr("mtpcore.backends.cpu.backend.WORTH_PACKING_LATER", 0)


@pytest.fixture
def little_by_little(monkeypatch):
    """Let each run pack no more than a matrix or two, however long it takes."""
    monkeypatch.setattr("mtpcore.backends.cpu.backend.MOST_PACKING", 0.0)


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
    """Return a model of which runs have packed a part, little by little, and its contexts."""
    wanted, model = wanted_of(path), mtpcore.load_model(path)
    contexts = [mtpcore.Context(model, 64, threads=1) for _ in range(n_contexts)]
    for _ in range(5):
        for context in contexts:
            assert_same_bits(logits(context), wanted)
    assert 0 < share(model) < 0.5
    return model, contexts, wanted


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


def test_prepare_packs_all_at_once_or_nothing(tmp_path):
    model = mtpcore.load_model(write_generated(tmp_path / "model.gguf", "llama", "Q8_0"))
    context = mtpcore.Context(model, 64, threads=2)
    assert context.bytes_to_pack == 0
    context.prepare(pack=False)
    assert share(model) == 0
    assert context.bytes_to_pack == sum(one.nbytes for one in matrices_of(model))
    context.prepare()
    assert (share(model), context.bytes_to_pack) == (1, 0)
    context.prepare()


@pytest.mark.usefixtures("little_by_little")
def test_bytes_to_pack_fall_with_each_run(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    model = mtpcore.load_model(path)
    context = mtpcore.Context(model, 64, threads=1)
    left = []
    while not left or left[-1]:
        logits(context)
        left.append(context.bytes_to_pack)
        packed = sum(one.nbytes * one.packed_share for one in matrices_of(model))
        assert left[-1] + packed == sum(one.nbytes for one in matrices_of(model))
    assert len(left) >= len(matrices_of(model))  # one by one, after the first
    assert left == sorted(set(left), reverse=True)


@pytest.mark.usefixtures("little_by_little")
def test_runs_are_warm_once_all_is_packed(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    context = mtpcore.Context(mtpcore.load_model(path), 64, threads=1)
    while not (logits(context), context.runner.is_warm)[1]:
        assert context.bytes_to_pack or not context.runner.is_warm
    logits(context)
    assert context.bytes_to_pack == 0
    assert context.runner.is_warm


def test_texts_begin_before_weights_are_packed(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    with mtpcore.LM(path, n_ctx=64) as lm:
        cross = lm.generator.cross
        assert cross.bytes_to_pack == sum(one.nbytes for one in matrices_of(lm.model))
        cross.prepare()
        assert cross.bytes_to_pack == 0


@pytest.mark.parametrize(
    ("words", "packs"),
    [
        (("run", "demo", "def", "-n", "2"), [False]),
        (("run", "demo", "def", "-n", "2", "--compare"), [False, True]),
        (("bench", "demo", "-p", "def", "-n", "2", "-r", "1"), [False, True]),
    ],
)
def test_commands_wait_for_packing_where_they_compare_speeds(words, packs, monkeypatch, capsys):
    seen, prepare = [], mtpcore.Cross.prepare

    def watched(cross, *, pack=True):
        seen.append(pack)
        prepare(cross, pack=pack)
        assert (cross.bytes_to_pack == 0) is pack

    monkeypatch.setattr(mtpcore.Cross, "prepare", watched)
    assert main(list(words)) == 0
    assert seen == packs


@pytest.mark.usefixtures("little_by_little")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_the_same_while_weights_are_packed(threads, temperature):
    """Both graphs draft and verify while some of their matrices are mapped, some packed."""

    def write(*, repack):
        model = mtpcore.load_model("demo", repack=repack)
        cross = mtpcore.link(mtpcore.Context(model, 128, threads=threads))
        cross.prepare(pack=False)
        sampling = mtpcore.Sampling(temperature=temperature, seed=3)
        generator = mtpcore.Generator(cross, sampling=sampling, draft=3)
        request = generator.add([5, 6, 7], max_tokens=80, ignore_eos=True)
        left = []
        while not request.done:
            generator.step()
            left.append([one.bytes_to_pack for one in cross.contexts.values()])
        return request.tokens, generator.stats.accepted_per_position, left

    tokens, accepted, left = write(repack=True)
    assert (tokens, accepted) == write(repack=False)[:2]
    for of_context in zip(*left, strict=True):
        assert of_context == tuple(sorted(of_context, reverse=True))
        assert len(set(of_context)) > 10


def test_without_memory_weights_stay_in_the_file(tmp_path, monkeypatch, caplog):
    def no_memory(n_bytes):
        raise CapacityError("no memory for packed weights", wanted=f"{n_bytes} bytes")

    path = write_generated(tmp_path / "model.gguf", "glm4moe", "Q8_0")
    wanted, model = wanted_of(path), mtpcore.load_model(path)
    monkeypatch.setattr(weights, "PackedMemory", no_memory)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        contexts = [mtpcore.Context(model, 64) for _ in range(2)]
        for context in (*contexts, *contexts):
            assert_same_bits(logits(context), wanted)
            context.prepare()
            assert context.bytes_to_pack == 0
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (")[0] for line in said] == ["no memory to pack weights"]
    assert all(one.is_mapped for one in matrices_of(model))


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


@pytest.mark.usefixtures("little_by_little")
def test_a_model_that_is_closed_meanwhile_is_packed_on(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    model, (context,), wanted = partly_packed(path)
    matrices = matrices_of(model)
    model.close()
    for _ in range(ROUNDS):
        assert_same_bits(logits(context), wanted)
    assert {one.packed_share for one in matrices} == {1}


@pytest.mark.usefixtures("little_by_little")
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


@pytest.mark.usefixtures("little_by_little")
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


N_LONG = 4096
WIDE = Sizes(width=1024, n_ff=4096, n_layers=3)


def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(HAS_ASAN, reason="AddressSanitizer keeps what was freed for a while")
def test_nothing_stays_of_models_that_go_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr("mtpcore.backends.cpu.backend.MOST_PACKING", 1e-3)
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=WIDE)

    def use():
        model = mtpcore.load_model(path)
        context = mtpcore.Context(model, 64)
        for _ in range(3):
            logits(context)
        assert 0 < share(model) < 1

    use()
    before = resident()
    for _ in range(8):
        use()
    assert resident() - before < path.stat().st_size


@pytest.mark.usefixtures("little_by_little")
def test_an_interrupt_leaves_what_is_packed():
    """A handler raises in the middle of a long batch that began with some packing."""
    wanted, model = wanted_of("demo"), mtpcore.load_model("demo")
    context = mtpcore.Context(model, N_LONG, n_batch=N_LONG, threads=1)

    assert_same_bits(logits(context), wanted)
    context.remove(0)
    with raising_alarms():
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            context.process(mtpcore.Batch.of([5] * N_LONG))
    assert context.length(0) == 0
    assert 0 < share(model) < 1
    assert_same_bits(logits(context), wanted)
    context.prepare()
    assert share(model) == 1
    assert_same_bits(logits(context), wanted)


ENDING = """
import sys, mtpcore
from mtpcore.backends.cpu import backend
backend.WORTH_PACKING_LATER, backend.MOST_PACKING = 0, 0.0
context = mtpcore.Context(mtpcore.load_model(sys.argv[1]), 64)
for pos in range(3):
    context.process(mtpcore.Batch.of([5], pos=pos))
assert context.bytes_to_pack
"""


def test_a_process_ends_meanwhile(tmp_path):
    path = write_generated(tmp_path / "model.gguf", "llama", "Q8_0", sizes=LONG)
    done = subprocess.run(
        [sys.executable, "-c", ENDING, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
