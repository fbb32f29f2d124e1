"""A NextN head after a Llama trunk: the declaration."""

from mtpcore.plugin import DrafterSpec, Feed, Fit, first_of, hookimpl
from mtpcore_llama_nextn.graph import head

NEXTN = DrafterSpec(
    name="llama_nextn",
    # Tensors decide whether a file has the head; the key only counts, and is checked against them.
    fit=Fit(
        architectures=frozenset({"llama"}),
        tensors=(
            "blk.{n}.nextn.eh_proj.weight",
            "blk.{n}.nextn.enorm.weight",
            "blk.{n}.nextn.hnorm.weight",
        ),
        count_key="{arch}.nextn_predict_layers",
    ),
    build=head,
    # Token p meets the trunk's row p - 1; in later steps the head's own output "hidden".
    feeds=(Feed(slot="hidden", taps=("hidden",), pairing="next-token", recycle="hidden"),),
    ties=(
        first_of("blk.{n}.nextn.embed_tokens.weight", "token_embd.weight"),
        first_of("blk.{n}.nextn.shared_head_head.weight", "output.weight", "token_embd.weight"),
        first_of("blk.{n}.nextn.shared_head_norm.weight", "output_norm.weight"),
    ),
    limit=4,
)


@hookimpl
def mtpcore_drafters() -> list[DrafterSpec]:
    """Offer the head."""
    return [NEXTN]
