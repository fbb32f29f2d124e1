"""Which type each tensor of a quantised file gets: llama.cpp's mixes.

A mix is named after the type of most matrices, and gives more bits to those whose errors hurt most.
Source of the rules: ``llama_tensor_get_type`` of llama.cpp (``src/llama-quant.cpp``, October 2026);
a file of its converter becomes, byte for byte, what its quantiser makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType as File

from mtpcore.errors import ModelFileError
from mtpcore.gguf.types import BLOCKS, block_type, type_name

__all__ = [
    "ALIASES",
    "MIXES",
    "Described",
    "MixName",
    "ModelShape",
    "TypeRules",
    "WRITABLE",
    "choose_types",
    "file_order",
    "is_of_output",
    "is_quantised",
    "model_shape",
    "read_type",
]

MixName = Literal[
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q2_k",
    "q2_k_s",
    "q3_k_s",
    "q3_k_m",
    "q3_k_l",
    "q4_k_s",
    "q4_k_m",
    "q5_k_s",
    "q5_k_m",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4_moe",
]

F32, F16, BF16 = (int(Type[name]) for name in ("F32", "F16", "BF16"))
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = (
    int(Type[name]) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
)
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = (
    int(Type[name]) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)
IQ4_NL, IQ4_XS, MXFP4 = (int(Type[name]) for name in ("IQ4_NL", "IQ4_XS", "MXFP4"))


class TypeMix(msgspec.Struct, frozen=True):
    """The type of most matrices, and what a file of this mix says in ``general.file_type``."""

    type: int
    file_type: int


MIXES: dict[str, TypeMix] = {
    "f32": TypeMix(F32, int(File.ALL_F32)),
    "f16": TypeMix(F16, int(File.MOSTLY_F16)),
    "bf16": TypeMix(BF16, int(File.MOSTLY_BF16)),
    "q8_0": TypeMix(Q8_0, int(File.MOSTLY_Q8_0)),
    "q4_0": TypeMix(Q4_0, int(File.MOSTLY_Q4_0)),
    "q4_1": TypeMix(Q4_1, int(File.MOSTLY_Q4_1)),
    "q5_0": TypeMix(Q5_0, int(File.MOSTLY_Q5_0)),
    "q5_1": TypeMix(Q5_1, int(File.MOSTLY_Q5_1)),
    "q2_k": TypeMix(Q2_K, int(File.MOSTLY_Q2_K)),
    "q2_k_s": TypeMix(Q2_K, int(File.MOSTLY_Q2_K_S)),
    "q3_k_s": TypeMix(Q3_K, int(File.MOSTLY_Q3_K_S)),
    "q3_k_m": TypeMix(Q3_K, int(File.MOSTLY_Q3_K_M)),
    "q3_k_l": TypeMix(Q3_K, int(File.MOSTLY_Q3_K_L)),
    "q4_k_s": TypeMix(Q4_K, int(File.MOSTLY_Q4_K_S)),
    "q4_k_m": TypeMix(Q4_K, int(File.MOSTLY_Q4_K_M)),
    "q5_k_s": TypeMix(Q5_K, int(File.MOSTLY_Q5_K_S)),
    "q5_k_m": TypeMix(Q5_K, int(File.MOSTLY_Q5_K_M)),
    "q6_k": TypeMix(Q6_K, int(File.MOSTLY_Q6_K)),
    "iq4_nl": TypeMix(IQ4_NL, int(File.MOSTLY_IQ4_NL)),
    "iq4_xs": TypeMix(IQ4_XS, int(File.MOSTLY_IQ4_XS)),
    "mxfp4_moe": TypeMix(MXFP4, int(File.MOSTLY_MXFP4_MOE)),
}

ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
"""Mixes by the name of their type."""

FALLBACKS = {
    IQ4_XS: IQ4_NL,
    Q2_K: Q4_0,
    Q3_K: Q4_0,
    Q4_K: Q5_0,
    Q5_K: Q5_1,
    Q6_K: Q8_0,
}
"""For rows that are no whole blocks of a type; what does not fit either becomes F16."""

_KEPT = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight"),
    *("indexer.q_proj.weight", "attn_rel_b.weight", ".position_embd", ".patch_embd"),
    *(".patch_merger", ".rel_pos", "a.rvq.codebook", "mm.a.code_embd"),
)
"""Parts of names of matrices that keep their type: small ones, routers, convolutions."""

_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_OUTPUT = "output.weight"
_KINDS = (
    *("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight", "attn_k.weight", "attn_q.weight"),
    *("attn_output.weight", "ffn_up", "ffn_gate", "ffn_down"),
)
"""Parts of names by which a matrix is treated, the first that is found."""

_VALUES = ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")
"""Matrices that make values of attention: they are counted together."""

_WITHOUT_MORE_BITS = frozenset({"falcon"})
_MANY_HEADS_A_VALUE = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""Layers of models that llama.cpp calls 70B, whose values serve eight heads each."""

_EXPERTS_BY_NAME = frozenset({"bailingmoe3"})
"""Architectures with stacks of matrices that are no experts'."""


class Described(msgspec.Struct, frozen=True):
    """What is known of a tensor before it is read: shape outermost axis first, and type id."""

    name: str
    shape: tuple[int, ...]
    type: int


class ModelShape(msgspec.Struct, frozen=True):
    """What the rules ask of a model.

    Attributes
    ----------
    architecture : str
    n_blocks : int
        Those of heads included.
    n_heads, n_kv_heads, n_experts : int
        Of the first block.
    """

    architecture: str
    n_blocks: int
    n_heads: int
    n_kv_heads: int
    n_experts: int

    @property
    def sharing(self) -> int:
        """How many heads a value serves."""
        return self.n_heads // self.n_kv_heads if self.n_kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp counts it among those of 70 billion weights."""
        n_layers = _MANY_HEADS_A_VALUE.get(self.architecture)
        is_shared = self.n_heads != self.n_kv_heads or self.architecture != "llama"
        return self.n_blocks == n_layers and is_shared


class TypeRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may ask besides a mix.

    Attributes
    ----------
    output, embedding : int, optional
        Types of the output matrix and of token embeddings.
    named : sequence of (callable, int)
        Types of matrices by what their names are asked; the first that says yes counts.
    least : sequence of (callable, int)
        The smallest types of matrices, by what their names are asked.
    is_pure : bool
        Whether all matrices get the mix's own type.
    keeps_output : bool
        Whether the output matrix keeps its type.
    weighted : collection of str, optional
        Matrices of which the importance matrix has weights; None: there is none, which some rules
        ask.
    """

    output: int | None = None
    embedding: int | None = None
    named: Sequence[tuple[Callable[[str], object], int]] = ()
    least: Sequence[tuple[Callable[[str], object], int]] = ()
    is_pure: bool = False
    keeps_output: bool = False
    weighted: Collection[str] | None = None


def file_order(name: str) -> tuple[int, bytes]:
    """Return what tensors of a file are sorted by: their block (-1 for none), then their name."""
    block = re.match(r"blk\.(\d+)\.", name)
    return (int(block[1]) if block else -1, name.encode())


def is_of_output(name: str) -> bool:
    """Say whether a matrix makes logits, or is a table that may make them, too."""
    return name == _OUTPUT or name in _EMBEDDINGS


def choose_types(
    tensors: Iterable[Described],
    mix: str,
    model: ModelShape,
    rules: TypeRules,
    *,
    in_order: bool = False,
) -> dict[str, int]:
    """Return the type id of each tensor, in the order of the file.

    Parameters
    ----------
    tensors : iterable of Described
        All of the file's.
    mix : str
        A key of ``MIXES``.
    model : ModelShape
    rules : TypeRules
    in_order : bool
        Whether they are given in the order of the file, as the parts of a split one have them;
        otherwise it is that of ``file_order``.

    Raises
    ------
    ModelFileError
        A matrix needs an importance matrix in this mix.
    """
    ordered = [*tensors] if in_order else sorted(tensors, key=lambda one: file_order(one.name))
    choice = _Choice(mix, model, rules, [tensor.name for tensor in ordered])
    return {tensor.name: choice.choose(tensor) for tensor in ordered}


def _has_more_bits(i: int, n: int) -> bool:
    """Say whether block i of n is one of the first, the last, or every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


class _Choice:
    """Chooses for one tensor after the other: rules count matrices of a kind."""

    def __init__(
        self, mix: str, model: ModelShape, rules: TypeRules, names: Collection[str]
    ) -> None:
        self.mix, self.model, self.rules = mix, model, rules
        self.default = MIXES[mix].type
        self.is_plain = BLOCKS[self.default][0] == 1
        self.is_tied = _OUTPUT not in names
        self.n_values = sum(_kind_of(name) in _VALUES for name in names)
        self.counted: dict[str, int] = {}

    def choose(self, tensor: Described) -> int:
        name, rules = tensor.name, self.rules
        if not is_quantised(tensor) or (rules.keeps_output and name == _OUTPUT):
            return tensor.type
        kind = self._asked(name)
        if kind is None and not self.is_plain:
            kind = _fitted(self._mixed(tensor), tensor.shape[-1])
        elif kind is None:
            kind = self.default
        for fits, least in rules.least:
            if fits(name) and _bits(kind) < _bits(least):
                kind = least
        kind = _fitted(kind, tensor.shape[-1])
        if self.mix == "q2_k_s" and kind == Q2_K and name not in (*_EMBEDDINGS, _OUTPUT):
            self._need_importance(name)
        return kind

    def _asked(self, name: str) -> int | None:
        """Return the type that somebody asked for; None: the mix decides."""
        rules = self.rules
        named = next((kind for fits, kind in rules.named if fits(name)), None)
        if name in _EMBEDDINGS and rules.embedding is not None:
            by_layer = name != _EMBEDDINGS[0]
            return named if by_layer and named is not None else rules.embedding
        if name == _OUTPUT and rules.output is not None:
            return rules.output
        return named

    def _need_importance(self, name: str) -> None:
        if name not in (self.rules.weighted or ()):
            raise ModelFileError(
                "this mix needs an importance matrix",
                where=f"tensor {name!r}",
                wanted="weights of the columns, for Q2_K in q2_k_s",
                fix="give one of this model (--imatrix FILE), or take q2_k",
            )

    def _mixed(self, tensor: Described) -> int:
        name, n_columns = tensor.name, tensor.shape[-1]
        if self.rules.is_pure:
            return self.default
        if name == _OUTPUT or (self.is_tied and name in _EMBEDDINGS):
            return self._of_output(n_columns)
        if self.mix == "mxfp4_moe":
            by_name = self.model.architecture in _EXPERTS_BY_NAME
            is_stack = len(tensor.shape) > 2 and tensor.shape[-3] > 1
            if is_stack and (not by_name or _kind_of(name).startswith("ffn_")):
                return MXFP4
            return Q8_0
        if name in _EMBEDDINGS:
            return self.default
        kind = _kind_of(name)
        if kind in _VALUES:
            return self._of_values(self._count("values"))
        if kind == "attn_k.weight" and self.model.n_experts == 8:
            return Q8_0
        if kind == "ffn_down":
            i = self._count(kind)
            return self._of_down(self._block_of(name) if self.model.n_experts > 1 else i)
        if kind == "attn_output.weight":
            return self._of_attention_output()
        return self.default

    def _count(self, kind: str) -> int:
        i = self.counted.get(kind, 0)
        self.counted[kind] = i + 1
        return i

    def _block_of(self, name: str) -> int:
        i = file_order(name)[0]
        if not 0 <= i < self.model.n_blocks:
            raise ModelFileError(
                "experts in a block that the file does not count",
                where=f"tensor {name!r}",
                wanted=f"blocks 0..{self.model.n_blocks - 1}",
                fix="correct block_count where the file comes from",
            )
        return i

    def _of_output(self, n_columns: int) -> int:
        if self.rules.output is not None:
            return self.rules.output
        plain = self.model.architecture in _WITHOUT_MORE_BITS
        if self.mix == "mxfp4_moe" or plain or n_columns % BLOCKS[self.default][0]:
            return Q8_0
        return Q8_0 if self.default == Q8_0 else Q6_K

    def _of_values(self, i: int) -> int:
        mix, sharing = self.mix, self.model.sharing
        kind = self.default
        if mix == "q2_k":
            kind = Q4_K if sharing >= 4 else Q3_K
        elif mix == "q2_k_s" and sharing >= 4:
            kind = Q4_K
        elif mix == "q3_k_m":
            kind = Q5_K if i < 2 else Q4_K
        elif mix == "q3_k_l" or (mix in ("iq4_nl", "iq4_xs") and sharing >= 4):
            kind = Q5_K
        elif mix in ("q4_k_m", "q5_k_m") and _has_more_bits(i, self.n_values):
            kind = Q6_K
        elif mix == "q4_k_s" and i < 4:
            kind = Q5_K
        if self.model.is_70b and kind in (Q3_K, Q4_K):
            kind = Q5_K
        return Q8_0 if self.model.n_experts == 8 else kind

    def _of_down(self, i: int) -> int:
        mix, n = self.mix, self.model.n_blocks
        plain = self.model.architecture in _WITHOUT_MORE_BITS
        kind = self.default
        if mix == "q2_k":
            kind = Q3_K
        elif mix == "q2_k_s" and i < n // 8:
            kind = Q4_K
        elif mix == "q3_k_m":
            if i < n // 16:
                kind = Q5_K
            elif not plain or _has_more_bits(i, n):
                kind = Q4_K
        elif mix == "q3_k_l":
            kind = Q4_K if plain else Q5_K
        elif mix == "q4_k_m" and plain:
            if i < n // 16:
                kind = Q6_K
            elif _has_more_bits(i, n):
                kind = Q5_K
        elif mix in ("q4_k_m", "q5_k_m") and _has_more_bits(i, n):
            kind = Q6_K
        elif i < n // 8:
            if (mix == "q4_k_s" and not plain) or (
                mix in ("iq4_nl", "iq4_xs") and self.rules.weighted is None
            ):
                kind = Q5_K
            elif mix in ("q4_0", "q5_0") and self.rules.weighted is not None:
                kind = Q4_1 if mix == "q4_0" else Q5_1
        return kind

    def _of_attention_output(self) -> int:
        mix = self.mix
        if self.model.architecture in _WITHOUT_MORE_BITS:
            return Q4_K if mix == "q3_k_l" else self.default
        if self.model.n_experts == 8:
            small = ("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m", "iq4_nl", "iq4_xs")
            return Q5_K if mix in small else self.default
        more = {"q2_k": Q3_K, "q3_k_m": Q4_K, "q3_k_l": Q5_K}
        return more.get(mix, self.default)


def _bits(kind: int) -> float:
    n_values, n_bytes = BLOCKS[kind]
    return float(8 * n_bytes / n_values)


def _kind_of(name: str) -> str:
    if name == _OUTPUT or name in _EMBEDDINGS:
        return name
    return next((kind for kind in _KINDS if kind in name), "")


def is_quantised(tensor: Described) -> bool:
    """Say whether a tensor of floats gets the type of a mix; others keep theirs."""
    name = tensor.name
    n_axes = len(tensor.shape)
    return (
        n_axes > 1
        and name.endswith("weight")
        and name not in _KEPT_WHOLE
        and not any(part in name for part in _KEPT)
    )


def _fitted(kind: int, n_columns: int) -> int:
    """Return a type that rows of so many columns are whole blocks of."""
    if n_columns % BLOCKS[kind][0] == 0:
        return kind
    smaller = FALLBACKS.get(kind, kind)
    return F16 if n_columns % BLOCKS[smaller][0] else smaller


WRITABLE = tuple(dict.fromkeys(type_name(mix.type).lower() for mix in MIXES.values()))
"""Types that matrices can be written in."""


def read_type(name: str, where: str) -> int:
    """Return the id of a type that matrices can be written in, by its name.

    Raises
    ------
    ModelFileError
        There is none of this name.
    """
    kind = block_type(name.upper()) if isinstance(name, str) else None
    if kind is None or name.lower() not in WRITABLE:
        raise ModelFileError(
            "unknown type",
            where=where,
            wanted=", ".join(WRITABLE),
            got=repr(name)[:80],
            fix="name one of these",
        )
    return kind


def model_shape(architecture: str, metadata: Mapping[str, object]) -> ModelShape:
    """Read what the rules ask of a model from its file's metadata; what is missing is 0."""

    def first(key: str, otherwise: int = 0) -> int:
        value = metadata.get(f"{architecture}.{key}", otherwise)
        values = np.atleast_1d(np.asarray(value))
        return int(values[0]) if values.size and values.dtype.kind in "iuf" else otherwise

    n_heads = first("attention.head_count")
    n_kv_heads = first("attention.head_count_kv", n_heads)
    return ModelShape(
        architecture, first("block_count"), n_heads, n_kv_heads, first("expert_count")
    )
