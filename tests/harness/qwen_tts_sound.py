"""What a published Qwen3-TTS holds between sound and codes: encoder of voices, and codec.

Small and random, beside ``harness.qwen_tts``; ``tools/qwen_tts_companion.py`` lets the package
qwen-tts and llama.cpp's converter read it. The module needs NumPy only, for its sake.
"""

from __future__ import annotations

import numpy as np

from harness.qwen_tts import N_CODES, WIDTH

MELS, CHANNELS, SCALE, N_SQUEEZED, N_ATTENTION = 128, 16, 8, 4, 6
VOICE = {
    "mel_dim": MELS,
    "enc_dim": WIDTH,
    "enc_channels": [CHANNELS, CHANNELS, CHANNELS, CHANNELS, 3 * CHANNELS],
    "enc_attention_channels": N_ATTENTION,
    "enc_se_channels": N_SQUEEZED,
    "sample_rate": 24000,
}
"""``speaker_encoder_config``."""
N_CODEBOOKS, N_LAYERS, WIDE, LATENT, ENTRY, FF, HEADS, HEAD = 16, 8, 6, 4, 16, 10, 16, 2
RATES, RATIOS = (5, 4, 3, 2), (2, 2)
CODEC = {
    "codebook_dim": 2 * LATENT,
    "codebook_size": N_CODES,
    "hidden_size": WIDE,
    "latent_dim": LATENT,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "intermediate_size": FF,
    "num_hidden_layers": N_LAYERS,
    "num_quantizers": N_CODEBOOKS,
    "upsample_rates": RATES,
    "upsampling_ratios": RATIOS,
    "decoder_dim": ENTRY,
}
"""``decoder_config`` of ``speech_tokenizer/config.json``."""

N_KNOWN = 2048
"""llama.cpp knows no talker with another number of codes."""

Arrays = dict[str, np.ndarray]


def codes(n: int = 6) -> np.ndarray:
    """Return frames, int32[n, codebooks]."""
    return np.random.default_rng(33).integers(0, N_KNOWN, (n, N_CODEBOOKS)).astype(np.int32)


def heard(n: int = 12000) -> np.ndarray:
    """Return sound, float32[n]: a rising tone in noise."""
    t = np.arange(n) / 24000
    noise = np.random.default_rng(34).normal(0, 0.02, n)
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * t) * t) + noise).astype(np.float32)


class Random:
    """Makes arrays by name, of a layer each."""

    def __init__(self, seed: int) -> None:
        self.rng, self.made = np.random.default_rng(seed), Arrays()

    def one(self, name: str, *shape: int, around: float = 0.0) -> None:
        """Make an array."""
        self.made[name] = (around + self.rng.normal(0, 0.25, shape)).astype(np.float32)

    def affine(self, name: str, *shape: int, n_out: int | None = None) -> None:
        """Make a weight and its bias."""
        self.one(f"{name}.weight", *shape)
        self.one(f"{name}.bias", shape[0] if n_out is None else n_out)


def voice(seed: int = 31) -> Arrays:
    """Return the encoder of voices, by its names in the checkpoint."""
    r, part = Random(seed), CHANNELS // SCALE
    r.affine("blocks.0.conv", CHANNELS, MELS, 5)
    for n in (1, 2, 3):
        for i in (1, 2):
            r.affine(f"blocks.{n}.tdnn{i}.conv", CHANNELS, CHANNELS, 1)
        for i in range(SCALE - 1):
            r.affine(f"blocks.{n}.res2net_block.blocks.{i}.conv", part, part, 3)
        r.affine(f"blocks.{n}.se_block.conv1", N_SQUEEZED, CHANNELS, 1)
        r.affine(f"blocks.{n}.se_block.conv2", CHANNELS, N_SQUEEZED, 1)
    r.affine("mfa.conv", 3 * CHANNELS, 3 * CHANNELS, 1)
    r.affine("asp.tdnn.conv", N_ATTENTION, 9 * CHANNELS, 1)
    r.affine("asp.conv", 3 * CHANNELS, N_ATTENTION, 1)
    r.affine("fc", WIDTH, 6 * CHANNELS, 1)
    return {f"speaker_encoder.{name}": values for name, values in r.made.items()}


def codec(seed: int = 32, n_codes: int = N_CODES) -> Arrays:
    """Return the codec, by its names in ``speech_tokenizer``; of its encoder one tensor."""
    r = Random(seed)
    for which, n in (("first", 1), ("rest", N_CODEBOOKS - 1)):
        for kind, shape in (("in", (LATENT, 2 * LATENT)), ("out", (2 * LATENT, LATENT))):
            r.one(f"quantizer.rvq_{which}.{kind}put_proj.weight", *shape, 1)
        for i in range(n):
            book = f"quantizer.rvq_{which}.vq.layers.{i}._codebook."
            r.one(f"{book}embedding_sum", n_codes, LATENT)
            usage = r.rng.integers(0, 5, n_codes).astype(np.float32)
            r.made[f"{book}cluster_usage"] = usage
            r.made[f"{book}embedding_sum"][usage == 0] *= np.float32(1e-5)  # of codes of no use
    r.affine("pre_conv.conv", LATENT, 2 * LATENT, 3)
    at = "pre_transformer."
    r.affine(f"{at}input_proj", WIDE, LATENT)
    r.affine(f"{at}output_proj", LATENT, WIDE)
    r.one(f"{at}norm.weight", WIDE, around=1.0)
    for n in range(N_LAYERS):
        layer = f"{at}layers.{n}."
        for name in "qkv":
            r.one(f"{layer}self_attn.{name}_proj.weight", HEADS * HEAD, WIDE)
        r.one(f"{layer}self_attn.o_proj.weight", WIDE, HEADS * HEAD)
        r.one(f"{layer}mlp.gate_proj.weight", FF, WIDE)
        r.one(f"{layer}mlp.up_proj.weight", FF, WIDE)
        r.one(f"{layer}mlp.down_proj.weight", WIDE, FF)
        for name in ("input_layernorm", "post_attention_layernorm"):
            r.one(f"{layer}{name}.weight", WIDE, around=1.0)
        for name in ("self_attn_layer_scale", "mlp_layer_scale"):
            r.one(f"{layer}{name}.scale", WIDE)
    for n, ratio in enumerate(RATIOS):
        block = f"upsample.{n}."
        r.affine(f"{block}0.conv", LATENT, LATENT, ratio)
        r.affine(f"{block}1.dwconv.conv", LATENT, 1, 7)
        r.affine(f"{block}1.norm", LATENT)
        r.affine(f"{block}1.pwconv1", 4 * LATENT, LATENT)
        r.affine(f"{block}1.pwconv2", LATENT, 4 * LATENT)
        r.one(f"{block}1.gamma", LATENT)
    r.affine("decoder.0.conv", ENTRY, LATENT, 7)
    for n, rate in enumerate(RATES):
        wide, narrow, block = ENTRY >> n, ENTRY >> n + 1, f"decoder.{n + 1}.block."
        _snake(r, f"{block}0", wide)
        r.affine(f"{block}1.conv", wide, narrow, 2 * rate, n_out=narrow)
        for i in (2, 3, 4):
            for k, width in ((1, 7), (2, 1)):
                _snake(r, f"{block}{i}.act{k}", narrow)
                r.affine(f"{block}{i}.conv{k}.conv", narrow, narrow, width)
    _snake(r, "decoder.5", ENTRY >> 4)
    r.affine("decoder.6.conv", 1, ENTRY >> 4, 7)
    r.made["decoder.6.conv.weight"] *= np.float32(0.1)  # sound is cut at -1 and 1
    decoder = {f"decoder.{name}": values for name, values in r.made.items()}
    return {**decoder, "encoder.downsample.conv.weight": np.zeros((2, 2, 4), np.float32)}


def _snake(r: Random, name: str, n: int) -> None:
    r.one(f"{name}.alpha", n)
    r.one(f"{name}.beta", n)
