"""What contexts hold: weights packed once, memory for their own layers, nothing when they go."""

import gc
import os
import sys
from pathlib import Path

import pytest
from harness import seer

from mtpcore import Batch, CapacityError, Context, GraphError, link, load_model
from mtpcore._ext._plan import HAS_ASAN
from mtpcore.backends.cpu import CpuBackend
from mtpcore.declarations.spec import Tap


@pytest.fixture(scope="module")
def model():
    with load_model("demo") as model:
        yield model


def packed_of(context):
    """The packed matrices that the context's operations read."""
    return [matrix for step in context.runner.plan.steps for matrix in step.matrices]


def memory_bytes(context):
    return sum(group.store.n_bytes for group in context.runner.memory.groups)


def layers_of(context):
    return sorted(layer.layer for layer in context.program.memory)


def head_block(model):
    """The number of the block after the trunk, as the file counts."""
    return model.hparams.n_layers


def test_contexts_of_a_model_share_packed_weights(model):
    """The second one packs nothing, whatever its sizes; the head's takes what is tied from it."""
    first = Context(model, 64)
    held = dict(model.packed)
    second = Context(model, 512, n_seq_max=4, n_batch=32, kv_dtype="f32", threads=1)
    assert model.packed.keys() == held.keys()
    assert all(model.packed[name] is made for name, made in held.items())
    assert len(packed_of(first)) > 10
    assert list(map(id, packed_of(first))) == list(map(id, packed_of(second)))
    link(second)
    assert all(model.packed[name] is made for name, made in held.items())


def test_without_the_head_nothing_of_it_is_held(model):
    """``mtp=False``: no packed tensor of its block, no layer of memory and no byte of one."""
    with load_model("demo", mtp=False) as alone:
        trunk = Context(alone, 64)
        trunk.prepare()
        block = f"blk.{head_block(model)}."
        assert any(name.startswith(block) for name in model.tensors)
        assert not [name for name in alone.tensors if name.startswith(block)]
        assert not [key for key in alone.packed if block in str(key)]
        assert alone.n_bytes < model.n_bytes
        linked = link(Context(model, 64))
        linked.prepare()
        assert [key for key in model.packed if block in str(key)]
        assert layers_of(trunk) == list(range(alone.hparams.n_layers))
        assert layers_of(linked.llm) == layers_of(trunk)
        assert memory_bytes(linked.llm) == memory_bytes(trunk)
        assert memory_bytes(linked.contexts["draft"]) * len(layers_of(trunk)) == memory_bytes(trunk)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(HAS_ASAN, reason="AddressSanitizer keeps what was freed for a while")
def test_memory_of_contexts_goes_with_them(tmp_path):
    """Native memory too: of 200 contexts that fill a megabyte each nothing stays."""
    small = seer.load(tmp_path, "line")

    def resident():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def make(n):
        for _ in range(n):
            context = Context(small, 512, kv_dtype="f32", threads=1, taps=["hidden"])
            context.process(Batch.of([1] * 500, outputs="all"))

    make(10)
    before = resident()
    make(200)
    assert resident() - before < 16 << 20


class Full(CpuBackend):
    """Has no memory left for a further plan where it is told so."""

    is_full = False

    def plan(self, *arguments, **options):
        if self.is_full:
            raise CapacityError("no memory for a plan")
        return super().plan(*arguments, **options)


def test_a_plan_that_cannot_be_made_changes_nothing(model):
    backend = Full()
    context, other = Context(model, 64, backend=backend), Context(model, 64)
    context.process(Batch.of([7, 8, 9]))
    context.remove(0)
    context.add_taps([Tap("hidden")])
    backend.is_full = True
    for call in (context.prepare, lambda: context.process(Batch.of([1, 2]))):
        with pytest.raises(CapacityError):
            call()
        assert context.length(0) == 0
    backend.is_full = False
    output = context.process(Batch.of([1, 2, 3]))
    assert output.tap("hidden").shape[0] == 3
    other.process(Batch.of([1, 2, 3]))
    assert context.digest(0) == other.digest(0)


def test_taps_that_are_not_there_change_nothing(model):
    context = Context(model, 64)
    context.prepare()
    before = context.program, context.runner.plan
    with pytest.raises(GraphError):
        context.add_taps([Tap("layer_input", 999)])
    assert (context.program, context.runner.plan) == before
    assert context.taps == ()
