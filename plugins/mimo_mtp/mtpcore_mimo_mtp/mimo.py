"""MiMo-7B (``mimo``): a Qwen2 trunk, and heads that are a Qwen2 layer each."""

import numpy as np

from mtpcore.plugin import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    NEXTN_TIES,
    OUTPUT_TIE,
    ROPE_KEYS,
    SWIGLU,
    TABLES,
    Checkpoint,
    Config,
    DrafterSpec,
    Feed,
    GraphBuilder,
    Heads,
    Hparams,
    Inputs,
    ModelSpec,
    Outputs,
    Rename,
    block_renames,
    dense_layer,
    dense_trunk,
    in_heads,
    nextn_fit,
    nextn_head,
    switched_window,
    trunk_fit,
)

PUBLISHED = frozenset({"MiMoForCausalLM"})
BLOCK = (
    *ATTENTION,
    *BIASES,
    *SWIGLU,
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
)
HEAD = "model.mtp_layers.{i}."


def token_first(values: np.ndarray, config: Config) -> np.ndarray:
    """Swap the halves of the columns: published heads join [hidden, token], files [token, hidden].

    Parameters
    ----------
    values : float[width, 2 width]
    """
    half = values.shape[1] // 2
    return np.concatenate([values[:, half:], values[:, :half]], axis=1)


def head(g: GraphBuilder, inputs: Inputs, h: Hparams) -> Outputs:
    """Build a head: token p meets the trunk's normed row p - 1."""
    return nextn_head(g, inputs, h, dense_layer)


MIMO = ModelSpec(
    name="mimo",
    fit=trunk_fit("mimo"),
    hparams=Hparams.read,
    build=dense_trunk,
    ties=(OUTPUT_TIE,),
    checkpoint=Checkpoint(
        architectures=PUBLISHED,
        tensors=(*TABLES, *BLOCK),
        constants=CONSTANTS,
        metadata=(
            *DECODER,
            *ROPE_KEYS,
            ("{arch}.attention.sliding_window", switched_window),
        ),
    ),
)

MIMO_MTP = DrafterSpec(
    name="mimo_mtp",
    fit=nextn_fit("mimo"),
    build=head,
    feeds=(
        Feed(
            slot="hidden",
            taps=("hidden",),
            recycle="hidden",
            evidence="transformers 5.23 MtpModel, vLLM and SGLang feed the normed state; the "
            "published single head is fed its own normed state in later steps",
        ),
    ),
    ties=NEXTN_TIES,
    heads=Heads(order="each-step", hidden_from="target"),
    checkpoint=Checkpoint(
        architectures=PUBLISHED,
        heads=HEAD + "input_proj.weight",
        counts=("num_nextn_predict_layers",),
        tensors=(
            Rename(HEAD + "input_proj.weight", "blk.{n}.nextn.eh_proj.weight", token_first),
            Rename(HEAD + "token_layernorm.weight", "blk.{n}.nextn.enorm.weight"),
            Rename(HEAD + "hidden_layernorm.weight", "blk.{n}.nextn.hnorm.weight"),
            Rename(HEAD + "final_layernorm.weight", "blk.{n}.nextn.shared_head_norm.weight"),
            *in_heads(HEAD, BLOCK),
        ),
    ),
    acceptance=(0.6, 0.95),
    evidence="a trained 3 M-parameter model of this shape: transformers accepts 163 of 213 first "
    "drafts in the greedy loop",
)
