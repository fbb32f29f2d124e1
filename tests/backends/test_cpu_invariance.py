"""A row's bits on the CPU depend on its own tokens, positions and memory, and on nothing else."""

import multiprocessing
import threading
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from programs import N_VOCAB, WIDTH, trunk

from mtpcore._ext._cpu import available_isas, use_isa
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cpu import CpuBackend
from mtpcore.errors import BackendError, BatchError, MtpcoreError
from mtpcore.memory.base import PAGE, RANGE
from mtpcore.testing import Runner

pytestmark = pytest.mark.usefixtures("share_small_plans")

N = 150
TEXT = np.random.default_rng(0).integers(0, N_VOCAB, N).astype(np.int32)
OTHER = np.random.default_rng(1).integers(0, N_VOCAB, N).astype(np.int32)
VARIANTS = {
    "causal": {},
    "window": {"window": 41},
    "pairs": {"styles": "pairs"},
    "f16": {"kind": Type.F16},
    "q8_0": {"kind": Type.Q8_0},
    "q4_0": {"kind": Type.Q4_0},
    "latent": {"latent": True},
    "latent q8_0": {"latent": True, "kind": Type.Q8_0},
}
PROGRAMS = {name: trunk(**options) for name, options in VARIANTS.items()}
ALONE = {}

examples = searching(25)
variants = st.sampled_from(list(VARIANTS))
kv_dtypes = st.sampled_from(["f32", "f16", "q8_0"])
isas = st.sampled_from(available_isas())


def runner(variant, kv_dtype, threads=1, n_batch=N, **options):
    program, weights = PROGRAMS[variant]
    return Runner(
        CpuBackend(), program, weights, threads=threads, n_batch=n_batch, kv_dtype=kv_dtype,
        **options,
    )  # fmt: skip


def alone(variant, kv_dtype):
    """Return the text's logits and digest when fed token by token on one thread."""
    if (variant, kv_dtype) not in ALONE:
        one = runner(variant, kv_dtype)
        logits = np.concatenate([one.feed([token])["logits"] for token in TEXT])
        ALONE[variant, kv_dtype] = logits, one.memory.digest(0)
    return ALONE[variant, kv_dtype]


def cut(data, n, most=40):
    """Draw lengths that sum to n."""
    lengths = []
    while sum(lengths) < n:
        lengths.append(min(data.draw(st.integers(1, most)), n - sum(lengths)))
    return lengths


def join(parts):
    """Make one batch of [(seq, place, tokens)], the sequences interleaved in chunks."""
    seq = np.concatenate([np.full(len(t), s, np.int32) for s, _, t in parts])
    place = np.concatenate([np.arange(p, p + len(t), dtype=np.int32) for _, p, t in parts])
    return CheckedBatch(
        tokens=np.concatenate([t for _, _, t in parts]),
        positions=place[:, None].copy(),
        seq=seq,
        place=place,
        outputs=np.arange(len(seq), dtype=np.int32),
    )


@examples
@given(st.data(), variants, kv_dtypes, isas, st.integers(1, 3), st.integers(40, 200))
def test_splits_threads_instructions_pages(data, variant, kv_dtype, isa, threads, n_batch):
    """Any split of the text, on any pages, whatever their unused bytes."""
    use_isa(isa)
    one = runner(variant, kv_dtype, threads, n_batch)
    one.memory.store.data[:] = 0xFF  # not a number in any type
    data.draw(st.randoms(use_true_random=False)).shuffle(one.memory.pages._free)
    begin, parts = 0, []
    for n in cut(data, N):
        parts.append(one.feed(TEXT[begin : begin + n], seq=2)["logits"])
        begin += n
    logits, digest = alone(variant, kv_dtype)
    assert np.array_equal(np.concatenate(parts), logits)
    assert one.memory.digest(2) == digest


@examples
@given(st.data(), variants, kv_dtypes, st.integers(1, 3))
def test_other_sequences_in_the_batch(data, variant, kv_dtype, threads):
    """A text beside others that run in the same batches, their rows cut into each other's."""
    one = runner(variant, kv_dtype, threads)
    done, parts = {0: 0, 1: 0, 3: 0}, []
    while done[1] < N:
        batch, places = [], {}
        for seq in data.draw(st.permutations([1, 0, 1, 3])):
            n = data.draw(st.integers(0 if seq != 1 else 1, 20))
            tokens = (TEXT if seq == 1 else OTHER)[done[seq] : done[seq] + n]
            if len(tokens):
                batch.append((seq, done[seq], tokens))
                done[seq] += len(tokens)
                places[seq] = places.get(seq, batch[-1][1:2])[0], done[seq]
        if not batch:
            break
        one.memory.reserve(places)
        rows = join(batch)
        parts.append(one.plan.run(rows, one.memory)["logits"][rows.seq == 1])
    logits, digest = alone(variant, kv_dtype)
    assert np.array_equal(np.concatenate(parts), logits)
    assert one.memory.digest(1) == digest


@examples
@given(st.data(), variants, kv_dtypes, isas, st.integers(1, 3), st.integers(0, 140))
def test_a_tree_row_is_its_path_decoded_in_a_row(data, variant, kv_dtype, isa, threads, base):
    """Also where the tree crosses pages, beside rows of another sequence."""
    use_isa(isa)
    one = runner(variant, kv_dtype, threads)
    one.memory.store.data[:] = 0xFF
    if base:
        one.feed(TEXT[:base])
    n = data.draw(st.integers(1, 24))
    parent = [data.draw(st.integers(-1 if i < 3 else max(i - 3, 0), i - 1)) for i in range(n)]
    tokens = np.array(data.draw(st.lists(st.integers(0, N_VOCAB - 1), min_size=n, max_size=n)))
    made = one.feed(tokens, parent=parent)["logits"]
    for leaf in data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=3)):
        path, row = [], leaf
        while row >= 0:
            path.insert(0, row)
            row = parent[row]
        chain = runner(variant, kv_dtype)
        if base:
            chain.feed(TEXT[:base])
        wanted = chain.feed(tokens[path])["logits"]
        assert np.array_equal(made[path], wanted)
        kept = runner(variant, kv_dtype, threads)
        if base:
            kept.feed(TEXT[:base])
        kept.feed(tokens, parent=parent)
        kept.memory.keep(0, base, path)
        assert kept.memory.digest(0) == chain.memory.digest(0)
        assert np.array_equal(kept.feed([1])["logits"], chain.feed([1])["logits"])


@pytest.mark.parametrize("variant", ["causal", "window", "latent"])
@pytest.mark.parametrize("kv_dtype", ["f32", "q8_0"])
def test_ranges_do_not_depend_on_who_makes_them(variant, kv_dtype):
    """Rows that see two ranges of places: made by one thread, and shared out among some."""
    begin, n_ctx = RANGE - 50, RANGE + 100
    one = runner(variant, kv_dtype, n_ctx=n_ctx)
    wanted = one.feed(TEXT[:120], place=begin)["logits"]
    for isa, threads, n in (("base", 2, 8), (available_isas()[-1], 5, 1), ("base", 3, 3)):
        use_isa(isa)
        other = runner(variant, kv_dtype, threads, n_ctx=n_ctx)
        other.feed(TEXT[:40], place=begin)
        # Sixteen steps across the border: where threads are more than cores, steps take long.
        steps = pairwise([*range(40, min(40 + 16 * n, 120), n), 120])
        made = [other.feed(TEXT[i:end])["logits"] for i, end in steps]
        assert np.array_equal(np.concatenate(made), wanted[40:])
        assert other.memory.digest(0) == one.memory.digest(0)


def test_many_ranges_of_one_text():
    text = np.resize(TEXT, 2 * RANGE + 60)
    made = []
    for threads in (1, 3):
        one = runner("latent", "f16", threads, n_batch=500, n_ctx=len(text))
        for i in range(0, 2 * RANGE, 500):
            one.feed(text[i : min(i + 500, 2 * RANGE)])
        made.append([one.feed(text[i : i + 4])["logits"] for i in range(2 * RANGE, len(text), 4)])
    assert np.array_equal(*made)


def test_a_tree_across_a_range_is_its_paths():
    text, parent = TEXT, [-1, 0, 0, 2, 1, 3]
    made = []
    for rows, parents in ((text[[5, 6, 7, 8, 9, 10]], parent), (text[[5, 7, 8, 10]], None)):
        one = runner("causal", "f16", 3, n_ctx=RANGE + 10)
        one.feed(text[:100], place=RANGE - 102)
        made.append(one.feed(rows, parent=parents)["logits"])
    assert np.array_equal(made[0][[0, 2, 3, 5]], made[1])


def test_chains_with_parents_are_chains():
    for variant in VARIANTS:
        plain, told = runner(variant, "q8_0", 2), runner(variant, "q8_0", 2)
        plain.feed(TEXT[:50])
        told.feed(TEXT[:50])
        wanted = plain.feed(TEXT[50:90])["logits"]
        assert np.array_equal(
            told.feed(TEXT[50:90], parent=[i - 1 for i in range(40)])["logits"], wanted
        )


def test_forks_share_pages_and_go_their_own_way():
    for variant, kv_dtype in (("causal", "f32"), ("causal", "f16"), ("latent", "q8_0")):
        one = runner(variant, kv_dtype, 2)
        one.feed(TEXT[:100], seq=0)
        one.memory.fork(0, 1)
        one.feed(OTHER[:30], seq=1)
        made = one.feed(TEXT[100:], seq=0)["logits"]
        logits, digest = alone(variant, kv_dtype)
        assert np.array_equal(made, logits[100:])
        assert one.memory.digest(0) == digest


def test_sequences_may_begin_anywhere():
    """Places below the first do not exist; the same text elsewhere is another matter."""
    made = []
    for n_batch in (N, 9):
        one = runner("causal", "f32", 2, n_batch)
        parts = [one.feed(TEXT[:9], place=100)] + [
            one.feed(TEXT[i : i + 9]) for i in range(9, 90, 9)
        ]
        made.append(np.concatenate([part["logits"] for part in parts]))
    assert np.array_equal(*made)


def test_embedding_rows_have_the_bits_of_their_tokens():
    _, weights = PROGRAMS["q8_0"]
    one = runner("q8_0", "f32")
    rows = weights.tensors["embd.weight"].array()[TEXT[:20]]
    tokens = np.where(np.arange(20) % 3, TEXT[:20], -1)
    rows[tokens >= 0] = np.nan
    made = one.feed(tokens, embeddings=rows)["logits"]
    assert rows.shape == (20, WIDTH)
    assert np.array_equal(made, alone("q8_0", "f32")[0][:20])


def test_rows_that_are_not_numbers_stay_among_themselves():
    one = runner("causal", "f32", 2)
    one.feed([-1] * 5, seq=0, embeddings=np.full((5, WIDTH), np.nan, np.float32))
    made = one.feed(TEXT[:70], seq=1)["logits"]
    assert np.array_equal(made, alone("causal", "f32")[0][:70])
    assert np.isnan(one.feed([3], seq=0)["logits"]).all()
    one.memory.rewind(0, 0)
    made = one.feed(TEXT[:70], seq=2)["logits"]  # on the pages that held them
    assert np.array_equal(made, alone("causal", "f32")[0][:70])


def test_threads_share_plans_of_their_own():
    """Regions of one pool run one after the other, whoever asks."""
    found = []

    def work():
        one = runner("causal", "f32", 2)
        found.append(np.concatenate([one.feed([token])["logits"] for token in TEXT[:40]]))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    assert all(np.array_equal(one, alone("causal", "f32")[0][:40]) for one in found)


def test_one_plan_is_not_run_twice_at_once():
    one = runner("causal", "f32")
    one.feed(TEXT[:10])
    errors = []

    class Rude:
        """Rows that run the plan again while the first run reads them."""

        def __getattr__(self, name):
            try:
                one.plan._executor.run(None, None, [])
            except BackendError as error:
                errors.append(error)
            raise AttributeError(name)

    with pytest.raises(AttributeError):
        one.plan._executor.run(Rude(), one.memory.pages, [])
    assert len(errors) == 1
    assert one.feed([1])["logits"].shape == (1, N_VOCAB)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"tokens": np.zeros(2, np.float32)}, "not what compiled code reads"),
        ({"place": np.array([3, 4], np.int64)}, "not what compiled code reads"),
        ({"positions": np.array([3, 4], np.int32)}, "not what compiled code reads"),
        ({"seq": np.zeros(1, np.int32)}, "rows do not fit"),
        ({"tokens": np.array([0, N_VOCAB], np.int32)}, "token id out of range"),
        ({"place": np.array([3, -1], np.int32)}, "below 0"),
        ({"place": np.array([3, 5], np.int32)}, "not reserved"),
        ({"place": np.array([3, 2**31 - 1], np.int32)}, "not reserved"),
        ({"seq": np.array([0, 1], np.int32)}, "not reserved"),
        ({"seq": np.array([0, 2**31 - 1], np.int32)}, "not reserved"),
        ({"outputs": np.array([2], np.int32)}, "not a row"),
        ({"parent": np.array([-1, 1], np.int32)}, "a parent is an earlier row"),
    ],
)
def test_what_compiled_code_cannot_run_is_refused(wrong, what):
    one = runner("causal", "f32")
    one.feed(TEXT[:3])
    one.memory.reserve({0: (3, 5)})
    rows = join([(0, 3, TEXT[3:5])])
    with pytest.raises(MtpcoreError, match=what):
        one.plan.run(msgspec.structs.replace(rows, **wrong), one.memory)
    made = one.plan.run(rows, one.memory)["logits"]
    assert np.array_equal(made, alone("causal", "f32")[0][3:5])


def test_a_place_without_a_page_is_refused():
    one = runner("causal", "f32")
    one.feed(TEXT[:3])
    one.memory.pages.length[0] = one.memory.pages.n_ctx + 1
    for place in (PAGE, one.memory.pages.n_ctx):
        with pytest.raises(BatchError, match="no page"):
            one.plan.run(join([(0, place, TEXT[:1])]), one.memory)


def child(pipe, one):
    pipe.send(one.feed(TEXT[50:90])["logits"])
    pipe.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    one = runner("causal", "f32", 2)
    one.feed(TEXT[:50])
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()
    process = context.Process(target=child, args=(its, one))
    process.start()
    assert mine.poll(60)
    made = mine.recv()
    process.join()
    assert process.exitcode == 0
    assert np.array_equal(made, alone("causal", "f32")[0][50:90])
    assert np.array_equal(one.feed(TEXT[50:90])["logits"], made)
