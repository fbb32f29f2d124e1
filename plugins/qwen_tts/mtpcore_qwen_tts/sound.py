"""What llama.cpp wants of the companion besides the code predictor: between sound and codes.

These are the encoder of voices and the codec's decoder. No graph here reads them; without them
llama.cpp's multimodal library loads no companion. Names, types and what is folded are those of its
``conversion/qwen3tts.py``; the numbers of layers are fixed in its ``clip.cpp``.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from mtpcore.plugin import Config, Rename

F32 = NDArray[np.float32]

FOLDER = "speech_tokenizer"
VOICE, CODEC, AT = "speaker_encoder.", f"{FOLDER}/decoder.", "a.gen.wav."
N_STAGES, N_BRANCHES = 3, 7
N_LAYERS, N_UPSAMPLED, N_BLOCKS, N_UNITS, N_BOOKS = 8, 2, 4, 3, 15

BOOK = f"{CODEC}quantizer.rvq_{{}}.vq.layers.{{}}._codebook."
PARTS = (f"{VOICE}fc.weight", f"{BOOK.format('rest', N_BOOKS - 1)}embedding_sum")
"""Tensors of a checkpoint that has both, and 16 codebooks as llama.cpp's converter wants them."""

LAYER = {
    "input_layernorm.weight": "ln1",
    "self_attn.q_proj.weight": "attn_q",
    "self_attn.k_proj.weight": "attn_k",
    "self_attn.v_proj.weight": "attn_v",
    "self_attn.o_proj.weight": "attn_out",
    "self_attn_layer_scale.scale": "ls1",
    "post_attention_layernorm.weight": "ln2",
    "mlp.gate_proj.weight": "ffn_gate",
    "mlp.up_proj.weight": "ffn_up",
    "mlp.down_proj.weight": "ffn_down",
    "mlp_layer_scale.scale": "ls2",
}


def affine(source: str, tensor: str, weight: Callable[..., F32] | None = None) -> list[Rename]:
    """Return a weight, as it is or changed, and its bias."""
    return [
        Rename(f"{source}.weight", f"{tensor}.weight", weight),
        Rename(f"{source}.bias", f"{tensor}.bias"),
    ]


def kernel(source: str, tensor: str) -> list[Rename]:
    """Return a convolution as llama.cpp computes it, in F16 whatever the file's type."""

    def halves(values: F32, config: Config) -> NDArray[np.uint8]:
        return values.astype("<f2").view(np.uint8)

    return [
        Rename(f"{source}.weight", f"{tensor}.weight", halves, blocks="F16"),
        Rename(f"{source}.bias", f"{tensor}.bias"),
    ]


def snake(source: str, tensor: str) -> list[Rename]:
    """Return an activation's frequencies and the inverse of its magnitudes, out of logarithms."""
    return [
        Rename(f"{source}.alpha", f"{tensor}.alpha", lambda alpha, config: np.exp(alpha)),
        Rename(f"{source}.beta", f"{tensor}.beta", lambda beta, config: 1 / (np.exp(beta) + 1e-9)),
    ]


def as_matrix(values: F32, config: Config) -> F32:
    """Return a convolution over one place as a matrix."""
    matrix: F32 = values[..., 0]
    return matrix


def means(sums: F32, usage: F32) -> F32:
    """Return a codebook: what was summed for each code, by how often it was."""
    codes: F32 = np.divide(sums, np.maximum(usage, np.float32(1e-5))[:, None])
    return codes


def one_book(sums: F32, config: Config, usage: F32) -> F32:
    """Return the first codebook."""
    return means(sums, usage)


def books(sums: F32, config: Config, usage: F32, *others: F32) -> F32:
    """Return the other codebooks, stacked."""
    pairs = [(sums, usage), *zip(others[::2], others[1::2], strict=True)]
    return np.stack([means(*pair) for pair in pairs])


def voice() -> Iterator[Rename]:
    """Yield the encoder of voices."""
    yield from affine(f"{VOICE}blocks.0.conv", "a.conv1d.0")
    for n in range(1, 1 + N_STAGES):
        block, at = f"{VOICE}blocks.{n}.", f"a.blk.{n}."
        for i in (1, 2):
            yield from affine(f"{block}tdnn{i}.conv", f"{at}conv_pw{i}")
            yield from affine(f"{block}se_block.conv{i}", f"{at}se_conv{i}")
        for i in range(N_BRANCHES):
            yield from affine(f"{block}res2net_block.blocks.{i}.conv", f"{at}res2.{i}")
    yield from affine(f"{VOICE}mfa.conv", "a.conv_out")
    yield from affine(f"{VOICE}asp.conv", "a.asp_attn")
    yield from affine(f"{VOICE}asp.tdnn.conv", "a.asp_tdnn")
    yield from affine(f"{VOICE}fc", "mm.a.fc")


def codec() -> Iterator[Rename]:
    """Yield the codec's decoder."""
    for which in ("first", "rest"):
        for kind in ("in", "out"):
            source = f"{CODEC}quantizer.rvq_{which}.{kind}put_proj.weight"
            yield Rename(source, f"{AT}quant.{which}.{kind}_proj.weight", as_matrix)
    for which, change, n in (("first", one_book, 1), ("rest", books, N_BOOKS)):
        first, *others = (
            BOOK.format(which, i) + kind
            for i in range(n)
            for kind in ("embedding_sum", "cluster_usage")
        )
        yield Rename(first, f"{AT}quant.{which}.codebook.weight", change, also=tuple(others))
    yield from kernel(f"{CODEC}pre_conv.conv", f"{AT}pre_conv")
    tower = f"{CODEC}pre_transformer."
    for kind in ("in", "out"):
        yield from affine(f"{tower}{kind}put_proj", f"{AT}tfm.{kind}_proj")
    yield Rename(f"{tower}norm.weight", f"{AT}tfm.output_norm.weight")
    for n in range(N_LAYERS):
        for source, tensor in LAYER.items():
            yield Rename(f"{tower}layers.{n}.{source}", f"{AT}tfm.blk.{n}.{tensor}.weight")
    for n in range(N_UPSAMPLED):
        block, at = f"{CODEC}upsample.{n}.", f"{AT}up.blk.{n}."
        yield from affine(f"{block}0.conv", f"{at}conv")
        yield from kernel(f"{block}1.dwconv.conv", f"{at}dwconv")
        yield from affine(f"{block}1.norm", f"{at}norm")
        for i in (1, 2):
            yield from affine(f"{block}1.pwconv{i}", f"{at}pw{i}")
        yield Rename(f"{block}1.gamma", f"{at}gamma")
    stages = f"{CODEC}decoder."
    yield from kernel(f"{stages}0.conv", f"{AT}dac.entry")
    for n in range(N_BLOCKS):
        block, at = f"{stages}{1 + n}.block.", f"{AT}dac.blk.{n}."
        yield from snake(f"{block}0", f"{at}snake")
        yield from affine(f"{block}1.conv", f"{at}conv")
        for i in range(N_UNITS):
            for k in (1, 2):
                yield from snake(f"{block}{2 + i}.act{k}", f"{at}res.{i}.act{k}")
                yield from kernel(f"{block}{2 + i}.conv{k}.conv", f"{at}res.{i}.conv{k}")
    yield from snake(f"{stages}{1 + N_BLOCKS}", f"{AT}dac.post_snake")
    yield from kernel(f"{stages}{2 + N_BLOCKS}.conv", f"{AT}dac.post_conv")


SOUND = (*voice(), *codec())
LEAST = (
    (f"{AT}*.weight", "Q8_0"),
    # llama.cpp has transposed convolutions in F32 and F16 alone, and its converter keeps F32.
    (f"{AT}up.blk.{{n}}.conv.weight", "F32"),
    (f"{AT}dac.blk.{{n}}.conv.weight", "F32"),
)
"""The smallest types."""
METADATA: tuple[tuple[str, str | Callable[[Config], object]], ...] = (
    ("clip.has_audio_encoder", lambda config: True),
    ("clip.audio.projector_type", lambda config: "qwen3tts_spkenc"),
    ("clip.audio.projection_dim", "hidden_size"),
    ("clip.audio.num_mel_bins", lambda config: 128),
    ("clip.audio.block_count", lambda config: N_STAGES),
    # The encoder has no attention: llama.cpp asks every encoder for these.
    ("clip.audio.embedding_length", lambda config: 1536),
    ("clip.audio.feed_forward_length", lambda config: 1536),
    ("clip.audio.attention.head_count", lambda config: 1),
    ("clip.audio.attention.layer_norm_epsilon", lambda config: 1e-5),
)
