"""Metadata is read with types, ranges and agreement with the tensors; anything else is an error."""

import numpy as np
import pytest

from mtpcore.errors import GraphError, ModelFileError
from mtpcore.gguf import Fields
from mtpcore.graph import GraphBuilder
from mtpcore.models.hparams import Experts, Hparams
from mtpcore.models.layer_kinds import LayerKind
from mtpcore.models.llama import LLAMA
from mtpcore.models.rope import Rope, interleaved_axes, plain_frequencies, section_axes, yarn

GOOD = {
    "block_count": 3,
    "context_length": 512,
    "embedding_length": 32,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
TENSORS = {"token_embd.weight": np.zeros((50, 32))}


def fields(**changed):
    values = {key.replace("__", "."): value for key, value in changed.items()}
    merged = {k: v for k, v in (GOOD | values).items() if v is not None}
    return Fields({f"toy.{key}": value for key, value in merged.items()}, "toy")


def nextn(*blocks):
    return {**TENSORS, **{f"blk.{n}.nextn.eh_proj.weight": np.zeros((32, 64)) for n in blocks}}


def blocks(last):
    return {**TENSORS, **{f"blk.{n}.attn_q.weight": np.zeros((32, 32)) for n in range(last + 1)}}


def test_read():
    h = Hparams.read(fields(), TENSORS)
    assert (h.n_vocab, h.width, h.n_layers, h.n_drafter_blocks) == (50, 32, 3, 0)
    assert (h.n_heads, h.n_kv_heads, h.head_width) == (4, 2, 8)
    assert h.rope.frequencies == plain_frequencies(10000.0, 8)
    assert h.rotary_axes == 1


def test_what_a_file_may_leave_out():
    h = Hparams.read(
        fields(attention__head_count_kv=None, attention__key_length=6, rope__dimension_count=4),
        TENSORS,
    )
    assert (h.n_kv_heads, h.head_width, len(h.rope.frequencies)) == (4, 6, 2)


@pytest.mark.parametrize(
    ("tensors", "declared", "layers", "heads"),
    [
        (TENSORS, None, 3, 0),
        (TENSORS, 1, 2, 0),  # a trunk-only file that still has the key
        (nextn(2), 1, 2, 1),
        (nextn(2), None, 2, 1),  # tensors decide
        (nextn(1, 2), 1, 1, 2),
        (nextn(3), None, 3, 1),  # a trunk-only file, completed by another
        (blocks(2), 1, 3, 0),  # a head was taken off, and only block_count corrected
        (blocks(1), 1, 2, 0),
        (blocks(2) | {"blk.2.nextn.enorm.weight": np.zeros(32)}, 1, 2, 0),  # a part of a head
    ],
)
def test_layers_of_the_trunk(tensors, declared, layers, heads):
    h = Hparams.read(fields(nextn_predict_layers=declared), tensors)
    assert (h.n_layers, h.n_drafter_blocks) == (layers, heads)


def test_layers_after_a_head_are_not_left_out_in_silence():
    with pytest.raises(ModelFileError, match="layers of the trunk lie after a head") as error:
        Hparams.read(fields(), blocks(2) | nextn(1))
    assert error.value.got == "2"


@pytest.mark.parametrize(
    "changed",
    [
        {"block_count": None},
        {"block_count": 0},
        {"block_count": 1 << 40},
        {"block_count": "three"},
        {"embedding_length": 33},
        {"embedding_length": 64},
        {"attention__head_count": 0},
        {"attention__head_count": 3},
        {"attention__head_count": [4, 4, 2]},
        {"attention__head_count": [4, 4]},
        {"attention__head_count_kv": 3},
        {"attention__head_count_kv": -1},
        {"attention__key_length": 1 << 30},
        {"attention__layer_norm_rms_epsilon": -1.0},
        {"attention__layer_norm_rms_epsilon": None},
        {"nextn_predict_layers": 3},
        {"nextn_predict_layers": -1},
        {"rope__dimension_count": 10},
        {"rope__dimension_count": 3},
        {"rope__dimension_count": 0},
        {"rope__freq_base": 0.0},
        {"rope__freq_base": 1e-300},
        {"rope__freq_base": float("nan")},
        {"rope__freq_base": float("inf")},
        {"rope__scaling.factor": float("nan")},
        {"attention__layer_norm_rms_epsilon": float("nan")},
        {"rope__scaling.type": "spiral"},
        {"rope__scaling.type": "yarn", "rope__scaling.original_context_length": -1},
        {"rope__scaling.factor": -2.0},
        {"rope__dimension_sections": [1 << 20, 1, 1, 1]},
        {"rope__dimension_sections": [-4, 4, 4, 4]},
        {"rope__dimension_sections": [1, 1, 1, 1, 1]},
    ],
    ids=repr,
)
def test_bad_metadata(changed):
    with pytest.raises(ModelFileError):
        Hparams.read(fields(**changed), TENSORS)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"token_embd.weight": np.zeros(50)},
        {"token_embd.weight": np.zeros((50, 31))},
        nextn(0),
        nextn(4),
        nextn(99999),
    ],
    ids=["none", "vector", "narrow", "first block", "after the last", "far away"],
)
def test_tensors_that_do_not_agree(tensors):
    with pytest.raises(ModelFileError):
        Hparams.read(fields(), tensors)


def test_experts():
    assert Experts.read(fields(), gate="sigmoid") is None
    made = Experts.read(
        fields(expert_count=8, expert_used_count=2, expert_weights_scale=0.0), gate="softmax"
    )
    assert made == Experts(n_used=2, gate="softmax", normalise=False, n_best_of_group=1)
    made = Experts.read(
        fields(
            expert_count=8,
            expert_used_count=3,
            expert_gating_func=2,
            expert_weights_norm=True,
            expert_weights_scale=2.5,
            expert_group_count=4,
            expert_group_used_count=2,
        ),
        gate="softmax",
    )
    assert made == Experts(
        n_used=3, gate="sigmoid", normalise=True, scale=2.5, n_groups=4, n_groups_used=2
    )
    # As llama.cpp saves what it knows of a family without the file.
    saved = {"expert_gating_func": 0, "expert_weights_norm": False}
    made = Experts.read(
        fields(expert_count=8, expert_used_count=2, **saved), gate="sigmoid", normalise=True
    )
    assert made == Experts(n_used=2, gate="sigmoid", normalise=True)
    for bad in ({"expert_used_count": 0}, {"expert_gating_func": 7}, {"expert_weights_norm": 3.5}):
        with pytest.raises(ModelFileError):
            Experts.read(
                fields(**({"expert_count": 8, "expert_used_count": 2} | bad)), gate="softmax"
            )


def test_a_graph_of_wrong_tensors_names_them():
    h = LLAMA.hparams(fields(), TENSORS)
    g = GraphBuilder("llm", TENSORS, ties=LLAMA.ties)
    with pytest.raises(GraphError, match=r"blk\.0\.attn_norm\.weight"):
        LLAMA.build(g, g.inputs, h)
    tensors = {
        **TENSORS,
        "blk.0.attn_norm.weight": np.zeros(32),
        "blk.0.attn_q.weight": np.zeros((40, 32)),
        "blk.0.attn_k.weight": np.zeros((16, 32)),
        "blk.0.attn_v.weight": np.zeros((16, 32)),
    }
    g = GraphBuilder("llm", tensors, ties=LLAMA.ties)
    with pytest.raises(GraphError, match="q and k widths differ"):
        LLAMA.build(g, g.inputs, h)


# Rotation


@pytest.mark.parametrize(
    "said",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
        {"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0},
    ],
)
def test_linear_scaling(said):
    """As files of 2023 say it, too: DeepSeek-Coder's, and others' of longer contexts."""
    rope = Rope.read(fields(**said), 8, "pairs")
    assert rope.frequencies == tuple(f / 4 for f in plain_frequencies(10000.0, 8))
    assert rope.style == "pairs"


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_layers_with_a_window_are_not_scaled(kind):
    """As in llama.cpp: the keys describe layers that see all."""
    scaling = {"type": kind, "factor": 4.0, "original_context_length": 16, "attn_factor": 0.5}
    said = {f"rope.scaling.{key}": value for key, value in scaling.items()} | {
        "attention.key_length": 8,
        "attention.sliding_window": 5,
        "attention.sliding_window_pattern": [True, False, True],
    }
    near, wide, _ = LayerKind.read(fields(**said), "halves")
    assert near.rope.frequencies == plain_frequencies(10000.0, 8) != wide.rope.frequencies
    assert near.rope.magnitude == 1 != wide.rope.magnitude


@pytest.mark.parametrize(
    ("said", "widths"),
    [
        ({}, (8, 4, 8, 4)),
        ({"rope.dimension_count_swa": 2}, (8, 2, 8, 4)),
        ({"attention.key_length_swa": 6}, (6, 6, 8, 4)),
        ({"attention.key_length_swa": 6, "rope.dimension_count_swa": 2}, (6, 2, 8, 4)),
    ],
)
def test_layers_with_a_window_rotate_as_much_unless_they_have_a_width_of_their_own(said, widths):
    said = said | {
        "attention.key_length": 8,
        "rope.dimension_count": 4,
        "attention.sliding_window": 5,
        "attention.sliding_window_pattern": [True, False, True],
    }
    near, wide, _ = LayerKind.read(fields(**said), "halves")
    found = [(kind.head_width, 2 * len(kind.rope.frequencies)) for kind in (near, wide)]
    assert (*found[0], *found[1]) == widths


@pytest.mark.parametrize(
    ("said", "period", "windows"),
    [
        (None, 3, [True, True, False]),  # as in llama.cpp: the last of so many sees all
        (None, 2, [True, False, True]),
        (2, 3, [True, False, True]),
        (0, 3, [True, True, True]),
        (1, 3, [False, False, False]),
        ([0, 1, 0], 3, [False, True, False]),
    ],
)
def test_a_pattern_of_windows_is_a_number_or_a_list_or_the_family_s(said, period, windows):
    metadata = {"attention.key_length": 8, "attention.sliding_window": 5}
    if said is not None:
        metadata["attention.sliding_window_pattern"] = said
    kinds = LayerKind.read(fields(**metadata), "halves", period=period)
    assert [kind.window == 5 for kind in kinds] == windows
    assert {kind.rope.frequencies for kind in kinds if kind.window} <= {
        plain_frequencies(10000.0, 8)
    }


def test_a_pattern_that_neither_file_nor_family_has_is_missed():
    with pytest.raises(ModelFileError, match="the key is missing"):
        LayerKind.read(fields(**{"attention.key_length": 8}), "halves")


def test_yarn_keeps_fast_pairs_and_slows_slow_ones():
    plain = plain_frequencies(10000.0, 64)
    made, magnitude = yarn(plain, 10000.0, 16.0, 4096)
    kept = [a == b for a, b in zip(plain, made, strict=True)]
    slowed = [b == pytest.approx(a / 16) for a, b in zip(plain, made, strict=True)]
    assert all(kept[:8])
    assert all(slowed[-8:])
    assert not any(k and s for k, s in zip(kept, slowed, strict=True))
    assert magnitude == pytest.approx(1.2772588722)
    unscaled, magnitude = yarn(plain, 10000.0, 1.0, 4096)
    assert unscaled == pytest.approx(plain)
    assert magnitude == 1


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 16}


@pytest.mark.parametrize(
    "said",
    [
        {"yarn_ext_factor": -1.0},  # llama.cpp's for a file that does not say it
        {"yarn_ext_factor": 1.0},
        {"yarn_attn_factor": 1.0},
        {"yarn_attn_factor": float(np.float32(1 + 0.1 * np.log(4.0)))},
        {"yarn_log_multiplier": 0.1},
    ],
    ids=repr,
)
def test_keys_of_yarn_that_change_nothing(said):
    def read(scaling):
        return Rope.read(
            fields(**{f"rope.scaling.{k}": v for k, v in scaling.items()}), 8, "halves"
        )

    assert read(YARN | said) == read(YARN)
    assert read(YARN).magnitude > 1


@pytest.mark.parametrize("n_ctx", [16, 4096])
def test_yarn_of_a_file_that_names_no_original_context(n_ctx):
    """The context that the file says counts, as in llama.cpp and in transformers."""
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    original = {"rope.scaling.original_context_length": n_ctx}
    made = Rope.read(fields(**scaling, context_length=n_ctx), 8, "halves")
    assert made == Rope.read(fields(**scaling, **original, context_length=99), 8, "halves")
    with pytest.raises(ModelFileError, match="context_length"):
        Rope.read(fields(**scaling, context_length=None), 8, "halves")


@pytest.mark.parametrize("key", ["yarn_ext_factor", "yarn_attn_factor"])
@pytest.mark.parametrize("value", [0.0, 0.5, 2.0])
def test_keys_of_yarn_that_no_one_follows(key, value):
    """llama.cpp does not read them of these architectures, whatever their checkpoints computed."""
    said = {f"rope.scaling.{k}": v for k, v in (YARN | {key: value}).items()}
    with pytest.raises(ModelFileError, match=rf"rope\.scaling\.{key}"):
        Rope.read(fields(**said), 8, "halves")
    Rope.read(fields(**said | {"rope.scaling.type": "linear"}), 8, "halves")


def test_sections_give_pairs_their_axes():
    assert section_axes([2, 1, 1, 0], 6) == (0, 0, 1, 2, 0, 0)
    assert section_axes([0, 0, 0, 0], 3) == (0, 0, 0)
    assert section_axes([], 2) == (0, 0)
    made = Rope.read(fields(**{"rope.dimension_sections": [1, 2, 1, 0]}), 8, "halves")
    assert made.axes == (0, 1, 1, 2)
    assert made.n_axes == 4


@pytest.mark.parametrize(
    ("sections", "n_pairs"), [([11, 11, 10, 0], 32), ([4, 2, 1], 12), ([3, 0, 5, 2], 16), ([1], 4)]
)
def test_interleaved_sections_take_turns(sections, n_pairs):
    """As published: the pairs are axis 0's, and axes 1 and 2 take theirs out of them in threes."""
    n = [*sections, 0, 0, 0]
    wanted = np.full(n_pairs, 3)
    for axis in range(3):
        wanted[axis : 3 * n[axis] : 3] = axis
    made = interleaved_axes(sections, n_pairs)
    assert made == tuple(wanted.tolist())
    assert [made.count(axis) for axis in range(3)] == n[:3]


def test_families_say_whether_axes_take_turns():
    class Interleaved(Hparams):
        interleaves_axes = True

    found = fields(**{"rope.dimension_sections": [2, 1, 1, 0]})
    axes = [kind.read(found, TENSORS).rope.axes for kind in (Hparams, Interleaved)]
    assert axes == [(0, 0, 1, 2), (0, 1, 2, 0)]


def test_interleaved_sections_that_are_none():
    assert interleaved_axes([11, 11, 10, 0], 32)[:4] == (0, 1, 2, 0)
    assert interleaved_axes([11, 11, 10, 0], 32)[-2:] == (0, 1)
    assert interleaved_axes([], 3) == interleaved_axes([0, 0], 3) == (0, 0, 0)
    with pytest.raises(ModelFileError, match="sections"):
        interleaved_axes([1, 1, 1, 1, 1], 8)
