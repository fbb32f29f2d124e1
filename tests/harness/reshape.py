"""Model files that parse, but whose tensors, values or hyper-parameters do not fit each other.

Each begins as a valid file of some family. First it may get what such files may have and this one
lacks; then one to three things are changed.
"""

import random
import re

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

from harness.originals import ORIGINALS, take_apart
from mtpcore.gguf.types import BLOCKS, dequantize

MOST_BYTES = 8 << 20
"""Of a changed tensor."""

LARGEST = (1 << 64) - 1
COUNTS = (
    *(0, 1, 2, 3, 5, 7, 8, 31, 33, 64, 255, 4096, 65_535, 1 << 16, 1 << 20, (1 << 20) + 1),
    *((1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, LARGEST),
    *(-1, -2, -(1 << 31), -(1 << 63)),
)
REALS = (
    *(0.0, -1.0, 0.5, 1.0, 1e-38, 1e-6, 1e6, 3e38, np.nan, np.inf, -np.inf),
    *(np.float64(1e300), np.float64(-1e300), np.float64(5e-324), np.float64(1 + 2**-52)),
)
OTHERS = ("", "yarn", "linear", "none", True, False, [1], [0.5], ["a"], [1, 2, 3], [-1] * 4)
# What some families read and the originals leave out.
OPTIONAL = (
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier", "rope.dimension_sections", "rope.dimension_count",
    "rope.freq_base_swa", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.temperature_scale", "attention.value_scale", "attention.key_length_mla",
    "attention.value_length_mla", "attention.key_length", "attention.value_length",
    "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count",
    "expert_gating_func", "expert_weights_scale", "expert_weights_norm", "nextn_predict_layers",
    "vocab_size", "target_layers", "target_hidden_size",
)  # fmt: skip
FLOATS = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-40, 0.0, 1e4)
INDICES = (-1, -(1 << 63), (1 << 63) - 1, 1 << 31, -(1 << 31), 1 << 32, 0, 1, 2047, 2048, 1023)


def write_reshaped(folder, seed):
    """Write a model, and its drafter where it has one of its own; return their paths.

    The same seed gives the same bytes.
    """
    chance = random.Random(seed)
    target, drafter = ORIGINALS[seed % len(ORIGINALS)]
    files = [take_apart(name) for name in (target, drafter) if name]
    for parts in files:
        before = set(parts.tensors)
        if chance.random() < 0.5:
            chance.choice(ADDED)(chance, parts, files[0])
        parts.added = [name for name in parts.tensors if name not in before]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(CHANGES)(chance, chance.choice([files[0], files[-1], files[-1]]))
    names = ("model.gguf", "drafter.gguf")
    return [parts.write(folder / name) for parts, name in zip(files, names, strict=False)]


# What a valid file may have besides


def add_own_tables(chance, parts, target):
    """Give a drafter tables of its own."""
    heads = [name for name in parts.tensors if name.endswith(".nextn.eh_proj.weight")]
    copied = {"token_embd.weight": "token_embd.weight"} if not heads else {}
    for name in heads:
        block = name.removesuffix("eh_proj.weight")
        copied |= {
            block + "embed_tokens.weight": "token_embd.weight",
            block + "shared_head_head.weight": "output.weight",
        }
    for name, source in copied.items():
        if source in target.tensors:
            parts.tensors[name], parts.types[name] = target.tensors[source], target.types[source]


def tie_output(chance, parts, target):
    parts.tensors.pop("output.weight", None)


def add_rotation_factors(chance, parts, target):
    width = parts.metadata.get(f"{parts.architecture}.rope.dimension_count", 2)
    _set_floats(parts, "rope_freqs.weight", np.ones(width // 2))


def add_biases(chance, parts, target):
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in list(parts.tensors):
        if kind_of(name).removesuffix(".weight") in names:
            n_rows = parts.shape(name)[0]
            _set_floats(parts, name.removesuffix("weight") + "bias", np.full(n_rows, 0.01))


def join_matrices(chance, parts, target):
    """Put matrices that read the same rows into one, and their biases."""
    for first, others, joined in (
        ("attn_q", ("attn_k", "attn_v"), "attn_qkv"),
        ("ffn_gate_exps", ("ffn_up_exps",), "ffn_gate_up_exps"),
    ):
        for name in [n for n in parts.tensors if n.split(".")[2:3] == [first]]:
            block, end = name.split(first)
            names = [block + one + end for one in (first, *others)]
            if not all(one in parts.tensors for one in names):
                continue
            parts.types[block + joined + end] = parts.types[name]
            pieces = [parts.tensors.pop(one) for one in names]
            axis = -1 if end == ".bias" else -2
            parts.tensors[block + joined + end] = np.concatenate(pieces, axis)


def join_latent_matrices(chance, parts, target):
    """Put the matrices of keys and values into one, as in older files."""
    for name in [n for n in parts.tensors if n.endswith(".attn_k_b.weight")]:
        block = name.removesuffix("attn_k_b.weight")
        n_heads, _, n_plain = parts.shape(name)
        values = parts.tensors.pop(block + "attn_v_b.weight")
        n_rows = n_heads * (n_plain + values.shape[1])
        del parts.tensors[name]
        parts.tensors[block + "attn_kv_b.weight"] = np.resize(values, (n_rows, values.shape[2]))
        parts.types[block + "attn_kv_b.weight"] = parts.types[block + "attn_v_b.weight"]


ADDED = (
    *(add_own_tables, add_own_tables, tie_output, add_rotation_factors, add_biases),
    *(join_matrices, join_latent_matrices),
)

# Changes


def _resize_axis(chance, parts):
    """Let a tensor have more or fewer of what one of its axes counts."""
    name = _any(chance, parts)
    axis = chance.randrange(parts.tensors[name].ndim)
    resize(parts, name, axis, _other_size(chance, length_of(parts, name, axis)))


def _resize_what_is_looked_up(chance, parts):
    """The same for rows of a table, or matrices of a stack, that are looked up by a number."""
    ends = ("embd.weight", "embed_tokens.weight", "_exps.weight", "_b.weight", "d2t", "_inp.weight")
    names = [name for name in parts.tensors if name.endswith(ends)]
    added = [name for name in names if name in parts.added]
    kind = chance.choice(sorted({kind_of(name) for name in added or names or parts.tensors}))
    name = chance.choice([one for one in parts.tensors if kind_of(one) == kind])
    resize(parts, name, 0, _other_size(chance, length_of(parts, name, 0)))


def _resize_alike(chance, parts):
    """The same for that tensor of every block."""
    name = _any(chance, parts)
    axis = chance.randrange(parts.tensors[name].ndim)
    size = _other_size(chance, length_of(parts, name, axis))
    for other in [n for n in parts.tensors if kind_of(n) == kind_of(name)]:
        if axis < parts.tensors[other].ndim:
            resize(parts, other, axis, size)


def _resize_everywhere(chance, parts):
    """Change a size wherever it stands, in all tensors or in those of one block."""
    name = _any(chance, parts)
    axis = chance.randrange(parts.tensors[name].ndim)
    old = parts.shape(name)[axis]
    new = max(1, chance.choice((old + 32, old - 32, old // 2, 2 * old, old + 1, old - 1)))
    block = name.split(".")[1] if chance.random() < 0.5 and name.startswith("blk.") else None
    for other in list(parts.tensors):
        if block is not None and not other.startswith(f"blk.{block}."):
            continue
        for at, size in enumerate(parts.shape(other)):
            if size == old:
                per_block = (
                    BLOCKS[parts.types[other]][0] if at == len(parts.shape(other)) - 1 else 1
                )
                resize(parts, other, at, max(1, new // per_block))
    if chance.random() < 0.5:
        for key, value in parts.metadata.items():
            if type(value) is int and value == old:
                parts.metadata[key] = new


def _change_axes(chance, parts):
    """Let the same values have other axes."""
    name = _any(chance, parts)
    values = parts.tensors[name]
    n_bytes = BLOCKS[parts.types[name]][1]
    rows = values.reshape(-1, values.shape[-1])
    shapes = [values[None], values[..., None, :], rows, values.reshape(-1), rows[0]]
    if values.ndim > 1:
        shapes.append(values.swapaxes(0, 1) if values.ndim > 2 else values.reshape(-1, n_bytes))
        shapes.append(values.reshape(*values.shape[:-2], -1, values.shape[-2] * n_bytes)
                      if values.shape[-1] % n_bytes == 0 and values.size else values)  # fmt: skip
    if values.ndim == 3:
        shapes += [values.reshape(1, *rows.shape), values[:, :1], values[:1]]
    found = chance.choice(shapes)
    if found.ndim <= 4:
        parts.tensors[name] = np.ascontiguousarray(found)


def _exchange(chance, parts):
    """Let two tensors change names."""
    one, other = _any(chance, parts), _any(chance, parts)
    for held in (parts.tensors, parts.types):
        held[one], held[other] = held[other], held[one]


def _drop(chance, parts):
    """Drop a tensor, that of all blocks, or a block."""
    name = _any(chance, parts)
    alike = [n for n in parts.tensors if kind_of(n) == kind_of(name)]
    block = [n for n in parts.tensors if n.split(".")[:2] == name.split(".")[:2]]
    for one in chance.choice(([name], [name], alike, block)):
        del parts.tensors[one]
    if not parts.tensors:
        parts.tensors[name], parts.types[name] = np.zeros(4, np.uint8), int(Type.F32)


def _copy_block(chance, parts):
    """Let a block, or one tensor of it, stand a second time elsewhere."""
    blocks = sorted({int(n.split(".")[1]) for n in parts.tensors if n.startswith("blk.")})
    if not blocks:
        return
    source = chance.choice(blocks)
    to = chance.choice((*blocks, blocks[-1] + 1, blocks[-1] + 1, blocks[-1] + 2, 1000))
    names = [n for n in parts.tensors if n.startswith(f"blk.{source}.")]
    for name in chance.choice((names, names, [chance.choice(names)])):
        new = f"blk.{to}." + name.split(".", 2)[2]
        parts.tensors[new], parts.types[new] = parts.tensors[name], parts.types[name]
    key = f"{parts.architecture}.block_count"
    if chance.random() < 0.5 and type(parts.metadata.get(key)) is int and to < 1000:
        parts.metadata[key] = to + 1


def _change_type(chance, parts):
    """Write a tensor's values in another type, or call its bytes another type."""
    name = _any(chance, parts)
    kind = chance.choice(list(Type))
    values = dequantize(parts.tensors[name], parts.types[name])
    if chance.random() < 0.7 and values is not None:
        try:
            blocks = quants.quantize(values.astype(np.float32), kind).view(np.uint8)
        except (NotImplementedError, ValueError, quants.QuantError):
            if kind.name[0] != "I" or not kind.name[1:].isdigit():
                return
            with np.errstate(all="ignore"):
                blocks = values.astype(f"<i{int(kind.name[1:]) // 8}").view(np.uint8)
        parts.tensors[name], parts.types[name] = np.ascontiguousarray(blocks), int(kind)
        return
    n_bytes = BLOCKS[int(kind)][1]
    raw = parts.tensors[name]
    n_blocks = max(1, raw.shape[-1] // n_bytes)
    parts.tensors[name] = np.resize(raw, (*raw.shape[:-1], n_blocks * n_bytes))
    parts.types[name] = int(kind)


def _change_values(chance, parts):
    """Write what is not finite, extreme or any bits into some places of a tensor."""
    name = _any(chance, parts)
    raw = parts.tensors[name] = parts.tensors[name].copy()
    noise = np.random.default_rng(chance.randrange(1 << 30))
    share = chance.choice((0.001, 0.05, 1))
    if parts.types[name] == Type.F32:
        values = raw.reshape(-1).view(np.float32)
        values[noise.random(values.size) < share] = chance.choice(FLOATS)
    else:
        flat = raw.reshape(-1)
        some = noise.random(flat.size) < share
        flat[some] = noise.integers(0, 256, int(some.sum()))


def _change_indices(chance, parts):
    """Change some numbers of a tensor of integers; where there is none, of another one."""
    names = [n for n, kind in parts.types.items() if kind == Type.I64 and n in parts.tensors]
    if not names:
        return _change_values(chance, parts)
    name = chance.choice(names)
    values = parts.tensors[name].copy().reshape(-1).view(np.int64)
    act = chance.randrange(5)
    if act == 0:
        values[chance.randrange(len(values))] = chance.choice(INDICES)
    elif act == 1:
        values[:] = chance.choice(INDICES)
    elif act == 2:
        values -= np.arange(len(values))  # offsets where ids belong
    elif act == 3:
        chance.shuffle(values)
    else:
        values[chance.randrange(len(values))] = values[chance.randrange(len(values))]
    parts.tensors[name] = values.view(np.uint8).reshape(parts.tensors[name].shape)


def _change_key(chance, parts):
    """Change a hyper-parameter: another number, another kind of value, or none."""
    prefix = parts.architecture + "."
    own = [key for key in parts.metadata if key.startswith(prefix)]
    key = chance.choice([*own, *own, *(prefix + one for one in OPTIONAL)])
    old = parts.metadata.get(key)
    if chance.random() < 0.05:
        parts.metadata.pop(key, None)
    elif isinstance(old, np.ndarray) and chance.random() < 0.8:
        parts.metadata[key] = _changed_list(chance, old)
    elif type(old) is int and chance.random() < 0.5:
        near = (old - 1, old + 1, old // 2, 2 * old, old + 32, old - 2, old + 2)
        parts.metadata[key] = min(max(chance.choice(near), 0), LARGEST)
    elif isinstance(old, float):
        parts.metadata[key] = chance.choice(REALS)
    else:
        parts.metadata[key] = chance.choice(chance.choice((COUNTS, COUNTS, REALS, OTHERS)))


def _changed_list(chance, old):
    new = [int(one) for one in old]
    act = chance.randrange(4)
    if act == 0:
        return np.array(new[: chance.randrange(len(new))] or [0], np.int32)
    if act == 1:
        return np.array([*new, *new], np.int32)
    counts = [n for n in COUNTS if -(1 << 63) <= n < 1 << 63]
    new[chance.randrange(len(new))] = chance.choice(counts)
    if act == 2:
        return np.array(new, np.int64)
    return new[0]


def _other_family(chance, parts):
    """Call the file another family's."""
    old = parts.architecture
    names = ("llama", "qwen2", "qwen3", "qwen3moe", "glm4moe", "deepseek2", "mimo", "mimo2")
    parts.architecture = chance.choice((*names, "eagle3", "unknown"))
    parts.metadata = {
        re.sub(f"^{old}\\.", parts.architecture + ".", key): value
        for key, value in parts.metadata.items()
        if key != "general.architecture"
    }


CHANGES = (
    *(_resize_what_is_looked_up, _resize_what_is_looked_up),
    *(_resize_axis, _resize_axis, _resize_axis, _resize_alike, _resize_alike, _resize_everywhere),
    *(_change_axes, _exchange, _drop, _copy_block, _change_type, _change_values),
    *(_change_indices, _change_indices),
    *(_change_key, _change_key, _change_key, _change_key, _other_family),
)

# Parts


def _any(chance, parts):
    """Return a tensor's name: each kind of tensor as likely, however many blocks have one.

    One that was added is likelier.
    """
    added = [name for name in parts.added if name in parts.tensors]
    if added and chance.random() < 0.3:
        return chance.choice(added)
    kind = chance.choice(sorted({kind_of(name) for name in parts.tensors}))
    return chance.choice([name for name in parts.tensors if kind_of(name) == kind])


def kind_of(name):
    return re.sub(r"^blk\.\d+\.", "", name)


def length_of(parts, name, axis):
    """Return the length of an axis; the last counts blocks."""
    values = parts.tensors[name]
    n_bytes = BLOCKS[parts.types[name]][1] if axis == values.ndim - 1 else 1
    return values.shape[axis] // n_bytes


def _other_size(chance, size):
    return max(1, chance.choice((size - 1, size - 1, size + 1, size // 2, 2 * size, 1, 3 * size)))


def resize(parts, name, axis, size):
    """Repeat or drop what is after the first entries of an axis."""
    values = parts.tensors[name]
    is_last = axis == values.ndim - 1
    n_bytes = BLOCKS[parts.types[name]][1] if is_last else 1
    if values.size // values.shape[axis] * size * n_bytes > MOST_BYTES:
        return
    blocks = values.reshape(*values.shape[:-1], -1, n_bytes) if is_last else values
    taken = blocks.take(np.arange(size) % blocks.shape[axis], axis)
    parts.tensors[name] = taken.reshape(*values.shape[:-1], -1) if is_last else taken


def _set_floats(parts, name, values):
    parts.tensors[name] = values.astype(np.float32).view(np.uint8)
    parts.types[name] = int(Type.F32)
