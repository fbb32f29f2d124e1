"""Every axis of every tensor is held against something: what is one shorter is refused."""

import pytest
from harness.originals import take_apart
from harness.reshape import (
    add_biases,
    add_own_tables,
    add_rotation_factors,
    join_latent_matrices,
    join_matrices,
    kind_of,
    length_of,
    resize,
)

import mtpcore

FILES = {
    "demo": (["demo"], [add_own_tables]),
    "latent": (["demo:deepseek"], []),
    "older latent": (["demo:deepseek"], [join_latent_matrices]),
    "joined": (["demo:mimo"], [join_matrices]),
    "windows": (["demo:mimo2"], [join_matrices]),
    "head in a file of its own": (
        ["demo:eagle3", "demo:eagle3-draft"],
        [add_rotation_factors, add_own_tables],
    ),
    "hybrid": (["hybrid"], [add_own_tables]),
    "joined hybrid": (["hybrid with experts"], [join_matrices]),
    "grouped hybrid": (["grouped hybrid"], []),
    "experts alone": (["qwen3moe Q8_0"], [add_biases]),
}


def make(name):
    """Return the parts of the files, with what is added to them."""
    names, added = FILES[name]
    files = [take_apart(one) for one in names]
    for add in added:
        for parts in files:
            add(None, parts, files[0])
    return files


def refuse(folder, files):
    """Load and link what the parts make; return the error, or None."""
    paths = [parts.write(folder / f"{i}.gguf") for i, parts in enumerate(files)]
    try:
        target, *drafters = [mtpcore.load_model(path, repack=False) for path in paths]
        context = mtpcore.Context(target, n_ctx=64, n_batch=8, threads=1)
        mtpcore.link(context, draft_model=drafters[0] if drafters else None)
    except mtpcore.MtpcoreError as error:
        return error
    return None


def axes_of(parts):
    """Yield one tensor of each kind, the last in the file, each of its axes, and how long it is."""
    for name in {kind_of(name): name for name in parts.tensors}.values():
        for axis in range(parts.tensors[name].ndim):
            yield name, axis, length_of(parts, name, axis)


@pytest.mark.parametrize("name", FILES)
def test_what_is_one_shorter_is_refused(name, tmp_path):
    whole = make(name)
    assert refuse(tmp_path, whole) is None
    shorter = [
        (at, tensor, axis, length - 1)
        for at, parts in enumerate(whole)
        for tensor, axis, length in axes_of(parts)
        if length > 1
    ]
    for at, tensor, axis, length in shorter:
        files = make(name)
        resize(files[at], tensor, axis, length)
        error = refuse(tmp_path, files)
        assert error is not None, (tensor, axis)
        assert error.where, error
        assert error.wanted is not None, error
        assert error.got is not None, error
        assert error.fix, error


def test_a_head_with_a_short_table_of_its_own_is_not_linked(tmp_path):
    (parts,) = make("demo")
    table = "blk.4.nextn.embed_tokens.weight"
    resize(parts, table, 0, 2000)
    error = refuse(tmp_path, [parts])
    assert error.what == "the embedding table is too short for the vocabulary"
    assert table in error.where
    assert (error.wanted, error.got) == ("2048 rows", "2000 rows")


@pytest.mark.parametrize("name", ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
@pytest.mark.parametrize("n_experts", [1, 7, 9])
def test_each_stack_has_the_experts_of_the_router(name, n_experts, tmp_path):
    (parts,) = make("demo")
    resize(parts, f"blk.2.{name}.weight", 0, n_experts)
    error = refuse(tmp_path, [parts])
    assert error.what == "not one matrix, row or column for each id"
    assert f"blk.2.{name}.weight" in error.where
    assert error.wanted == (8, "...")
    assert error.got[0] == n_experts
