"""Declarations of published drafters, graphs left out: can the structs say all that differs?"""

from mtpcore.plugin import (
    Block,
    Checkpoint,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    Key,
    KVPolicy,
    Rename,
    Tree,
    VocabularyMap,
    first_of,
)


def no_graph(*arguments):
    """Stand for a graph that another file would hold."""
    raise NotImplementedError


def plus_one(norm, config):
    """Restore a norm's weight that a checkpoint stores minus one."""
    return norm + 1.0


def swap_halves(matrix, config):
    """Put the columns for the embedding before those for the hidden row."""
    half = matrix.shape[1] // 2
    return matrix[:, [*range(half, 2 * half), *range(half)]]


NEXTN = ("blk.{n}.nextn.eh_proj.weight", "blk.{n}.nextn.enorm.weight", "blk.{n}.nextn.hnorm.weight")
COUNT = "{arch}.nextn_predict_layers"
EMBEDDING = first_of("blk.{n}.nextn.embed_tokens.weight", "token_embd.weight")
OUTPUT = first_of("blk.{n}.nextn.shared_head_head.weight", "output.weight", "token_embd.weight")
NORM = first_of("blk.{n}.nextn.shared_head_norm.weight", "output_norm.weight")

DEEPSEEK_MTP = DrafterSpec(
    name="deepseek_mtp",
    build=no_graph,
    fit=Fit(architectures=frozenset({"deepseek2"}), tensors=NEXTN, count_key=COUNT),
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
    ties=(EMBEDDING, OUTPUT, NORM),
    first_embedding="zeros",
    acceptance=(0.8, 0.9),
    min_types=(("blk.{n}.nextn.eh_proj.weight", "Q8_0"),),
    checkpoint=Checkpoint(
        architectures=frozenset({"DeepseekV3ForCausalLM"}),
        tensors=(Rename("model.layers.{n}.eh_proj.weight", "blk.{n}.nextn.eh_proj.weight"),),
        heads="model.layers.{n}.eh_proj.weight",
    ),
    evidence="vLLM deepseek_mtp.py zeroes the embedding where the position is 0",
)

QWEN_MTP = DrafterSpec(
    name="qwen_mtp",
    build=no_graph,
    fit=Fit(architectures=frozenset({"qwen35"}), tensors=NEXTN, count_key=COUNT),
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
    ties=(EMBEDDING, OUTPUT, NORM),
    checkpoint=Checkpoint(
        architectures=frozenset({"Qwen3NextForCausalLM"}),
        heads="mtp.layers.{i}.input_layernorm.weight",
        tensors=(
            Rename("mtp.pre_fc_norm_hidden.weight", "blk.{n}.nextn.hnorm.weight", plus_one),
            Rename("mtp.norm.weight", "blk.{n}.nextn.shared_head_norm.weight", plus_one),
        ),
    ),
)

MIMO_7B = DrafterSpec(
    name="mimo_mtp",
    build=no_graph,
    fit=Fit(architectures=frozenset({"mimo"}), tensors=NEXTN, count_key=COUNT),
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
    ties=(EMBEDDING, OUTPUT, NORM),
    first_embedding="zeros",
    limit=1,
    checkpoint=Checkpoint(
        architectures=frozenset({"MiMoForCausalLM"}),
        tensors=(
            Rename(
                "model.mtp_layers.{i}.input_proj.weight",
                "blk.{n}.nextn.eh_proj.weight",
                swap_halves,
            ),
        ),
        heads="model.mtp_layers.{i}.input_proj.weight",
    ),
)

MIMO_V2 = DrafterSpec(
    name="mimo_v2_mtp",
    build=no_graph,
    fit=Fit(architectures=frozenset({"mimo2"}), tensors=NEXTN, count_key=COUNT),
    feeds=(Feed(slot="hidden", taps=("residual",), recycle="residual"),),
    ties=(
        EMBEDDING,
        OUTPUT,
        first_of(
            "blk.{n}.nextn.shared_head_norm.weight",
            "blk.{n}.layer_output_norm.weight",
            "output_norm.weight",
        ),
    ),
    kv=KVPolicy(window="{arch}.attention.sliding_window", per_head=True),
    heads=Heads(count=COUNT, order="each-step", rereads=True, hidden_from="previous"),
)

MIMO_V2_TARGET = DrafterSpec(
    name="mimo_v2_target",
    build=no_graph,
    variant_of="mimo_v2_mtp",
    fit=MIMO_V2.fit,
    feeds=(Feed(slot="hidden", taps=("residual",)),),
    ties=MIMO_V2.ties,
    kv=MIMO_V2.kv,
    heads=Heads(count=COUNT, order="each-step", rereads=True, hidden_from="target"),
    evidence="SGLang's multi-layer worker gives every head the target's row",
)

EAGLE1 = DrafterSpec(
    name="eagle1",
    build=no_graph,
    fit=Fit(architectures=frozenset({"eagle"}), tensors=("fc.weight",)),
    standalone=True,
    hparams=no_graph,
    shape="tree",
    tree=Tree(depth=7, width=10, n_nodes=60),
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
    ties=(
        first_of("token_embd.weight", "target:token_embd.weight"),
        first_of("output.weight", "target:output.weight", "target:token_embd.weight"),
    ),
)

EAGLE3 = DrafterSpec(
    name="eagle3",
    build=no_graph,
    fit=Fit(
        architectures=frozenset({"eagle3"}),
        tensors=("fc.weight", "blk.0.attn_norm_2.weight"),
        targets=frozenset({"llama", "qwen3"}),
    ),
    standalone=True,
    hparams=no_graph,
    graph_type="draft",
    graphs=(("fusion", no_graph),),
    feeds=(
        Feed(
            slot="taps",
            graph="fusion",
            taps=("layer_input:{arch}.target_layers",),
            pairing="none",
        ),
        Feed(slot="hidden", src="fusion", taps=("fused",), recycle="residual"),
    ),
    ties=EAGLE1.ties,
    vocabulary=VocabularyMap(tensor="d2t", values="absolute", optional=True),
)

EAGLE3_CHECKPOINT = VocabularyMap(tensor="d2t", values="offset", optional=True)

DFLASH = DrafterSpec(
    name="dflash",
    build=no_graph,
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=("fc.weight", "enc.output_norm.weight"),
        absent=("markov_w1.weight",),
    ),
    standalone=True,
    hparams=no_graph,
    shape="block",
    block=Block(
        size=Key("{arch}.block_size", 16),
        mask_token="tokenizer.ggml.mask_token_id",
        mask_tensor="mask_embd.weight",
        causal=Key("{arch}.attention.causal", False),
    ),
    limit=16,
    graphs=(("injection", no_graph),),
    feeds=(
        Feed(
            slot="taps",
            graph="injection",
            taps=("layer_input:{arch}.target_layers",),
            pairing="same-token",
        ),
    ),
    kv=KVPolicy(
        source="injected", refresh=False, window=Key("{arch}.attention.sliding_window", None)
    ),
    ties=EAGLE1.ties,
    vocabulary=VocabularyMap(tensor="d2t"),
)

DSPARK = DrafterSpec(
    name="dspark",
    build=no_graph,
    fit=Fit(architectures=frozenset({"dflash"}), tensors=("fc.weight", "markov_w1.weight")),
    standalone=True,
    hparams=no_graph,
    shape="block",
    block=Block(
        size=Key("{arch}.block_size", 16),
        mask_token="tokenizer.ggml.mask_token_id",
        anchor_predicts=Key("{arch}.sample_from_anchor", True),
        chain="markov",
        confidence="confidence",
    ),
    limit=16,
    graphs=(("injection", no_graph), ("markov", no_graph)),
    feeds=(
        *DFLASH.feeds,
        Feed(slot="hidden", graph="markov", src="draft", taps=("hidden",), pairing="same-token"),
    ),
    kv=DFLASH.kv,
    ties=DFLASH.ties,
    vocabulary=DFLASH.vocabulary,
)

DFLASH2 = DrafterSpec(
    name="dflash2",
    build=no_graph,
    fit=Fit(architectures=frozenset({"dflash"}), tensors=("selector_hidden.weight",)),
    standalone=True,
    hparams=no_graph,
    shape="block",
    block=Block(
        size="{arch}.block_size",
        mask_token="tokenizer.ggml.mask_token_id",
        chain="selector",
        candidates="{arch}.selector_top_k",
    ),
    limit=16,
    graphs=(("injection", no_graph), ("selector", no_graph)),
    feeds=DFLASH.feeds,
    kv=DFLASH.kv,
    ties=DFLASH.ties,
)

MEDUSA = DrafterSpec(
    name="medusa",
    build=no_graph,
    fit=Fit(architectures=frozenset({"medusa"}), tensors=("medusa.{n}.output.weight",)),
    standalone=True,
    hparams=no_graph,
    shape="tree",
    tree=Tree(paths=((0,), (0, 0), (1,), (0, 1), (0, 0, 0))),
    feeds=(Feed(slot="hidden", taps=("hidden",), pairing="none"),),
    heads=Heads(count="{arch}.head_count", order="parallel"),
    kv=KVPolicy(source="none", refresh=False, warm_up=False),
    limit=5,
)

MLP_SPECULATOR = DrafterSpec(
    name="mlp_speculator",
    build=no_graph,
    fit=Fit(architectures=frozenset({"mlp_speculator"}), tensors=("speculator.{n}.proj.weight",)),
    standalone=True,
    hparams=no_graph,
    feeds=(
        Feed(slot="state", taps=("hidden",), recycle="state", recycle_width="{arch}.inner_width"),
    ),
    heads=Heads(count="{arch}.head_count", order="each-step"),
    kv=KVPolicy(source="none", refresh=False, warm_up=False),
    ties=(first_of("speculator.{n}.emb.weight", "speculator.0.emb.weight"),),
)

GEMMA4_ASSISTANT = DrafterSpec(
    name="gemma4_assistant",
    build=no_graph,
    fit=Fit(
        architectures=frozenset({"gemma4-assistant"}),
        tensors=("nextn.pre_projection.weight",),
        targets=frozenset({"gemma4"}),
    ),
    standalone=True,
    hparams=no_graph,
    feeds=(Feed(slot="hidden", taps=("hidden",), recycle="projected"),),
    ties=(first_of("target:token_embd.weight"),),
    kv=KVPolicy(
        source="shared", refresh=False, warm_up=False, layer_map=(("full", 1), ("sliding", 2))
    ),
    positions="same",
)

ALL = [value for value in dict(globals()).values() if isinstance(value, DrafterSpec)]
