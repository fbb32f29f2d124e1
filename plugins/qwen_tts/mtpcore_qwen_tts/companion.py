"""The file beside the talker's, with the code predictor: names and keys are llama.cpp's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtpcore.plugin import Companion, Count, Fields, fit_axes

AT, SIZES = "a.gen.code.", "clip.gen.audio."
OF_FIRST, OF_OTHERS, OUTPUTS = (f"{AT}{name}.weight" for name in ("out_embd", "embd", "head"))
LAYER = {
    "attn_norm": "ln1",
    "attn_q": "attn_q",
    "attn_k": "attn_k",
    "attn_v": "attn_v",
    "attn_q_norm": "attn_q_norm",
    "attn_k_norm": "attn_k_norm",
    "attn_output": "attn_out",
    "ffn_norm": "ln2",
    "ffn_gate": "ffn_gate",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
}
"""What the two call the tensors of a layer."""

EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
"""What the two call the one key whose name is another."""
MARKS = ("pad", "bos", "think", "nothink", "think_bos", "think_eos")
"""First codes that stand in prompts."""
END, LANGUAGE, SPEAKER = "<|codec_eos_token|>", "<|codec_language_{}|>", "<|spk_{}|>"


def here(key: str) -> str:
    """Return what the code predictor's graph calls a key of the companion."""
    return "{arch}.depth." + key.removeprefix(SIZES).replace(*EPSILON[::-1])


def there(key: str) -> str:
    """Return what the companion calls a key of the code predictor's graph."""
    return SIZES + key.removeprefix("{arch}.depth.").replace(*EPSILON)


def texts_of_codes(n: int, marks: dict[str, int]) -> list[str]:
    """Return the texts of ``n`` first codes as tokens; those of ``marks`` have these texts."""
    texts = [f"<|codec_{i}|>" for i in range(n)]
    for text, i in marks.items():
        texts[i] = text
    return texts


def read_metadata(talker: Any, companion: Any) -> dict[str, object]:
    """Return the code predictor's sizes, and what texts of tokens say of first codes.

    Raises
    ------
    ValueError
        The companion was made for another talker.
    """
    embeddings = companion.tensors[OF_FIRST]
    others, outputs = (fit_axes(companion.tensors[name].shape, 3) for name in (OF_OTHERS, OUTPUTS))
    if len(embeddings.shape) != 2 or len(others) != 3:
        raise ValueError(f"no tables of codes are of shapes {embeddings.shape}, {others}")
    if outputs[:2] != others[:2]:
        raise ValueError(f"matrices {outputs} are not for codes of tables {others}")
    n_first, (n_others, n_codes, _) = len_of(embeddings), others
    n_text = len_of(talker.tensors["token_embd.weight"]) - n_first
    check_codes(talker.tensors["token_embd.weight"], embeddings, n_text)
    texts = Fields.of(talker).get("tokenizer.ggml.tokens", list[str], [])
    return {
        **predictor_sizes(Fields.of(companion), companion.tensors, n_others),
        **marks_of(texts[:n_text], texts[n_text:]),
        "{arch}.codebook_count": 1 + n_others,
        "{arch}.codebook_size": n_codes,
        "{arch}.codebook_first_size": n_first,
    }


def len_of(tensor: Any) -> int:
    """Return the rows of a table."""
    return int(tensor.shape[0])


def check_codes(table: Any, embeddings: Any, n_text: int) -> None:
    """Refuse first codes that are others than those in the talker's table, types aside."""
    n = min(len_of(embeddings), 8)
    if n_text < 1 or table.shape[1:] != embeddings.shape[1:]:
        raise ValueError(f"{list(embeddings.shape)} is no end of a table {list(table.shape)}")
    a, b = table.rows(n_text, n_text + n).ravel(), embeddings.rows(0, n).ravel()
    if a @ b < 0.9 * np.linalg.norm(a) * np.linalg.norm(b):
        raise ValueError("the embeddings of first codes differ")


def predictor_sizes(fields: Fields, tensors: Any, n_others: int) -> dict[str, object]:
    """Return the code predictor's sizes, and those that llama.cpp's files do without."""
    said = {here(key): value for key, value in fields.metadata.items() if key.startswith(SIZES)}
    sizes: dict[str, object] = {
        "{arch}.depth.context_length": 1 + n_others,
        "{arch}.depth.rope.freq_base": 1e6,
    }
    queries = tensors.get(f"{AT}blk.0.attn_q.weight")
    if queries is not None:
        n_heads = fields.require(f"{SIZES}attention.head_count", Count)
        sizes["{arch}.depth.attention.key_length"] = len_of(queries) // n_heads
    return sizes | said


def marks_of(texts: Sequence[str], codes: Sequence[str]) -> dict[str, object]:
    """Return the marks among first codes, by the texts that files give them as tokens."""
    ids = {text: i for i, text in enumerate(codes)}
    if END not in ids:
        raise ValueError(f"no token {END} is among the first codes")
    found: dict[str, object] = {"{arch}.codebook_end": ids[END]}
    for name in MARKS:
        if (text := f"<|codec_{name}|>") in ids:
            found[f"{{arch}}.codec.{name}_id"] = ids[text]
    for kind, pattern in (("language", LANGUAGE), ("speaker", SPEAKER)):
        before, after = pattern.split("{}")
        named = {
            text.removeprefix(before).removesuffix(after): i
            for text, i in ids.items()
            if text.startswith(before) and text.endswith(after)
        }
        if named:
            found[f"{{arch}}.{kind}.names"] = [*named]
            found[f"{{arch}}.{kind}.ids"] = np.array([*named.values()], np.int32)
    if "<tts_pad>" in texts:
        found["{arch}.text_padding_token_id"] = texts.index("<tts_pad>")
    return found


COMPANION = Companion(
    file="mmproj-*.gguf",
    architecture="clip",
    tensors=(
        ("audio_embd.weight", (OF_FIRST, OF_OTHERS)),
        ("depth.input.weight", (f"{AT}proj_in.weight",)),
        ("depth.input.bias", (f"{AT}proj_in.bias",)),
        ("depth.output_norm.weight", (f"{AT}output_norm.weight",)),
        ("depth.output.weight", (OUTPUTS,)),
        *(
            (f"depth.blk.{{n}}.{here}.weight", (f"{AT}blk.{{n}}.{there}.weight",))
            for here, there in LAYER.items()
        ),
    ),
    metadata=read_metadata,
)
