"""DFlash and its relatives: drafters in files of their own that fill a block in one pass."""

import msgspec

from mtpcore.plugin import (
    Block,
    DrafterSpec,
    Feed,
    Fit,
    Key,
    draft_block_tree,
    first_of,
    hookimpl,
)
from mtpcore_dflash.candidates import candidate_block
from mtpcore_dflash.checkpoint import (
    DFLASH2_CHECKPOINT,
    DFLASH_CHECKPOINT,
    DSPARK_CHECKPOINT,
    LILICORR_CHECKPOINT,
    XPRESS_CHECKPOINT,
)
from mtpcore_dflash.graph import (
    DFlashHparams,
    block,
    described_block,
    entries,
    markov,
    paired_block,
    refiner,
    selector,
)

_TENSORS = ("fc.weight", "enc.output_norm.weight", "output_norm.weight")
_MARKOV = ("markov_w1.weight", "markov_w2.weight")
_SELECTOR = tuple(f"selector_{name}.weight" for name in ("predecessor", "successor", "hidden"))
_LILICORR = tuple(f"lilicorr.{name}.weight" for name in ("going", "coming", "start", "distance"))
_REFINER = tuple(
    f"refiner.{name}.weight"
    for name in (
        *("row", "block", "token_embd", "join", "mix"),
        *("ffn_gate", "ffn_up", "ffn_down", "output"),
    )
)
_BLOCK = Block(
    size=Key("{arch}.block_size", 16),
    mask="tokenizer.ggml.mask_token_id",
    from_pending=Key("{arch}.sample_from_anchor", False),
    entries="entries",
)
_TAPS = Feed(
    slot="taps",
    graph="entries",
    taps=("layer_input:{arch}.target_layers",),
    pairing="same-token",
    evidence="the reference and llama.cpp store an entry at the position of the target's row; the "
    "reference counts layers by their outputs, files by their inputs",
)

DFLASH = DrafterSpec(
    name="dflash",
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=_TENSORS,
        absent=(_MARKOV[0], _REFINER[0], _SELECTOR[0], _LILICORR[0]),
        sidecars=("dflash-*.gguf",),
    ),
    standalone=True,
    hparams=DFlashHparams.read,
    shape="block",
    block=_BLOCK,
    build=block,
    schedule=draft_block_tree,
    graphs=(("entries", entries),),
    feeds=(_TAPS,),
    ties=(
        first_of("token_embd.weight", "target:token_embd.weight"),
        first_of("output.weight", "target:output.weight", "target:token_embd.weight"),
    ),
    vocabulary="d2t",
    limit=16,
    min_types=(("fc.weight", "Q8_0"),),
    checkpoint=DFLASH_CHECKPOINT,
    acceptance=(0.5, 0.85),
    evidence="Chen, Liang and others, arXiv 2602.06036: 6.2 times as fast on Qwen3-8B; an engine's "
    "measurement: 6.3 tokens a pass",
)

DFLASH2 = msgspec.structs.replace(
    DFLASH,
    name="dflash2",
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=(*_TENSORS, *_SELECTOR),
        sidecars=("dflash2-*.gguf",),
    ),
    schedule=None,
    block=msgspec.structs.replace(_BLOCK, post_head="selector"),
    build=paired_block,
    graphs=(("entries", entries), ("selector", selector)),
    feeds=(
        _TAPS,
        *(
            Feed(
                slot=slot,
                graph="selector",
                src="draft",
                taps=(tap,),
                pairing="same-token",
                evidence="the authors' code and vLLM score a row's candidates by its own state",
            )
            for slot, tap in (("base", "logits"), ("pairs", "pairs"))
        ),
    ),
    min_types=(*DFLASH.min_types, ("blk.{n}.*_conv_base", "F32")),
    checkpoint=DFLASH2_CHECKPOINT,
    evidence="llama.cpp's pull request 27342: 4.40 to 5.06 tokens a pass for Muse-Glimmer, where "
    "DFlash has 3.69 to 4.83",
)

LILICORR = msgspec.structs.replace(
    DFLASH,
    name="lilicorr",
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=(*_TENSORS, *_LILICORR),
        sidecars=("lilicorr-*.gguf",),
    ),
    schedule=None,
    build=candidate_block,
    feeds=(
        _TAPS,
        Feed(
            slot="taps",
            taps=_TAPS.taps,
            pairing="next-token",
            mask="lilicorr.target_mask.weight",
            evidence="the authors' code, vLLM and TensorRT-LLM take the row that made the pending "
            "token",
        ),
    ),
    vocabulary="",
    min_types=(
        *DFLASH.min_types,
        ("blk.{n}.*_conv_base", "F32"),
        ("lilicorr.*_mix.weight", "F32"),
        ("lilicorr.distance.weight", "F32"),
    ),
    checkpoint=LILICORR_CHECKPOINT,
    evidence="arXiv 2608.20530, and its authors' pull request 37462 for SGLang",
)

DSPARK = msgspec.structs.replace(
    DFLASH,
    name="dspark",
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=(*_TENSORS, *_MARKOV),
        sidecars=("dspark-*.gguf",),
    ),
    schedule=None,
    block=msgspec.structs.replace(
        _BLOCK, from_pending=Key("{arch}.sample_from_anchor", True), post_head="markov"
    ),
    graphs=(("entries", entries), ("markov", markov)),
    feeds=(
        _TAPS,
        Feed(
            slot="base",
            graph="markov",
            src="draft",
            taps=("logits",),
            pairing="same-token",
            evidence="vLLM and llama.cpp add the previous token's logits to those of the row",
        ),
    ),
    unread=(
        ("conf_proj.*", "how many drafts to verify is measured, not said by the confidence head"),
        ("{arch}.has_confidence_head", "likewise"),
    ),
    checkpoint=DSPARK_CHECKPOINT,
    evidence="a published preview for GLM-5.2: .711, .560, .464, ... by position, 2.75 tokens a "
    "pass; beside DFlash with the same backbone 2.52 to 2.30 accepted",
)

XPRESS = msgspec.structs.replace(
    DFLASH,
    name="xpress",
    fit=Fit(
        architectures=frozenset({"dflash"}),
        tensors=(*_TENSORS, *_REFINER),
        sidecars=("xpress-*.gguf",),
    ),
    schedule=None,
    block=msgspec.structs.replace(
        _BLOCK, post_head="refiner", passes=Key("{arch}.refiner_passes", 6)
    ),
    build=described_block,
    graphs=(("entries", entries), ("refiner", refiner)),
    feeds=(
        _TAPS,
        Feed(
            slot="description",
            graph="refiner",
            src="draft",
            taps=("description",),
            pairing="same-token",
            evidence="the authors' code computes it once a block, and reads it in each pass",
        ),
        Feed(
            slot="base",
            graph="refiner",
            src="draft",
            taps=("logits",),
            pairing="same-token",
            evidence="the authors' code adds the refiner's bias to the block's own logits",
        ),
    ),
    min_types=(*DFLASH.min_types, ("refiner.mix.weight", "F32")),
    checkpoint=XPRESS_CHECKPOINT,
    evidence="Wang and others, arXiv 2608.02438: 30% more accepted than DFlash's with the same "
    "backbone, on Qwen3-8B",
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer all five."""
    return [DFLASH, DFLASH2, LILICORR, DSPARK, XPRESS]
