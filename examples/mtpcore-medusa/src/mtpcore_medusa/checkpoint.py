"""How Medusa heads are published for vLLM, and what their model files call it."""

from mtpcore.plugin import Checkpoint, Rename

CHECKPOINT = Checkpoint(
    architectures=frozenset({"MedusaModel"}),
    layers="num_heads",
    tensors=(
        Rename("blocks.{n}.layers.0.weight", "blk.{n}.medusa.weight"),
        Rename("blocks.{n}.layers.0.bias", "blk.{n}.medusa.bias", optional=True),
        Rename("lm_heads.{n}.weight", "blk.{n}.output.weight", optional=True),
        Rename("lm_head.weight", "output.weight", optional=True),
        Rename("token_map", "d2t", optional=True),
    ),
    metadata=(
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.embedding_length", "hidden_size"),
    ),
)
