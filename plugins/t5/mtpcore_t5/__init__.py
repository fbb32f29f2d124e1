"""T5: an encoder that reads the prompt, and a decoder that writes the text."""

from mtpcore.plugin import OUTPUT_TIE, Feed, Fit, ModelSpec, hookimpl
from mtpcore_t5.checkpoint import MT5_CHECKPOINT, T5_CHECKPOINT, UMT5_CHECKPOINT
from mtpcore_t5.graph import T5Hparams, decode, encode

T5 = ModelSpec(
    name="t5",
    fit=Fit(
        architectures=frozenset({"t5"}),
        tensors=("token_embd.weight", "enc.output_norm.weight", "dec.output_norm.weight"),
    ),
    hparams=T5Hparams.read,
    build=decode,
    graphs=(("encoder", encode),),
    feeds=(
        Feed(
            slot="encoded",
            src="encoder",
            pairing="whole-sequence",
            evidence="Raffel et al. 2020, arXiv 1910.10683, section 2.1",
        ),
    ),
    encoder="encoder",
    ties=(OUTPUT_TIE,),
    min_types=(("enc.blk.{n}.attn_rel_b.weight", "F32"), ("dec.blk.{n}.attn_rel_b.weight", "F32")),
    unread=(
        ("dec.blk.{n}.cross_attn_rel_b.weight", "cross attention knows no positions"),
        ("{arch}.attention.key_length", "the matrices are so wide"),
        ("{arch}.attention.head_count_kv", "the matrices are so wide"),
        ("{arch}.attention.relative_buckets_count", "the tables have so many rows"),
        ("{arch}.rope.*", "nothing is rotated"),
    ),
    checkpoint=T5_CHECKPOINT,
    layouts=(MT5_CHECKPOINT, UMT5_CHECKPOINT),
)


@hookimpl
def mtpcore_models() -> list[ModelSpec]:
    """Offer the family."""
    return [T5]
