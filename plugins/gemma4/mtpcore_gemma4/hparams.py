"""Hyper-parameters of Gemma 4: layers that see a window and layers that see all differ in more."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec

from mtpcore.plugin import Count, Experts, Fields, Hparams, Rope

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


class Kind(msgspec.Struct, frozen=True):
    """Attention of one layer; ``window`` counts the tokens that a query sees, 0 is all."""

    head_width: int
    n_kv_heads: int
    rope: Rope
    window: int = 0


class GemmaHparams(Hparams, frozen=True, kw_only=True):
    """What Gemma 4 adds.

    Attributes
    ----------
    width_by_layer : int
        Of the embedding that each layer has of each token; 0: there is none.
    n_sharing : int
        The last so many layers store nothing, and read what others store.
    softcap : float
        Logits stay below it; 0: they are as they are.
    kinds : tuple of Kind
        Of each layer.
    spans : bool
        Rows of an image see each other, in layers with a window.
    experts : Experts or None
    """

    reads_target: ClassVar[bool] = False
    """Whether layers read what another model's store."""

    # The key holds one number for each block where kinds differ; see ``kinds``.
    n_kv_heads: int = msgspec.field(name="n_kv_heads", default=0)
    width_by_layer: Size = msgspec.field(name="embedding_length_per_layer_input", default=0)
    n_sharing: Size = msgspec.field(name="attention.shared_kv_layers", default=0)
    softcap: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="final_logit_softcapping", default=30.0
    )
    kinds: tuple[Kind, ...] = ()
    spans: bool = False
    experts: Experts | None = None

    @classmethod
    def read(cls, fields: Fields, tensors: Mapping[str, Any]) -> Self:
        """Read a model's metadata, and check that layers that share find one that stores."""
        h = super().read(fields, tensors)
        lost = [n for n in range(h.n_layers) if h.stored_by(n) < 0 and not cls.reads_target]
        if lost:
            raise fields.error(
                "{arch}.attention.shared_kv_layers",
                f"no layer of the kind of layer {lost[0]} stores keys and values",
                got=h.n_sharing,
            )
        return h

    @classmethod
    def read_more(cls, fields: Fields) -> dict[str, object]:
        """Read each layer's kind, whether images are spans, and how experts are routed.

        Files of llama.cpp do not say whether they are: of what is published, those of models that
        have no embeddings for each layer.
        """
        by_layer = fields.get("{arch}.embedding_length_per_layer_input", Size, 0)
        return {
            "kinds": read_kinds(fields, cls),
            "spans": fields.get("{arch}.attention.image_spans", bool, not by_layer),
            "experts": Experts.read(fields, gate="softmax", normalise=True),
        }

    def stored_by(self, n: int) -> int:
        """Return the layer whose keys and values layer n reads: its own, or the last of its kind.

        -1 where no layer of its kind stores any.
        """
        n_storing = self.n_layers - self.n_sharing
        if n < n_storing:
            return n
        near = bool(self.kinds[n].window)
        return max((i for i in range(n_storing) if bool(self.kinds[i].window) == near), default=-1)


def read_kinds(fields: Fields, hparams: type[Hparams]) -> tuple[Kind, ...]:
    """Read every block's kind.

    Raises
    ------
    ModelFileError
        A key is missing, has another number of entries than there are blocks, or does not fit.
    """
    n_blocks = fields.require("{arch}.block_count", Count)
    n_heads = fields.require("{arch}.attention.head_count", Count)
    key = "{arch}.attention.sliding_window_pattern"
    pattern = fields.per_layer(key, n_blocks, bool)
    n_kv = fields.per_layer("{arch}.attention.head_count_kv", n_blocks, Count)
    wide = fields.require("{arch}.attention.key_length", Count)
    near = fields.get("{arch}.attention.key_length_swa", Count, wide)
    window = fields.require("{arch}.attention.sliding_window", Count) if any(pattern) else 0
    rope = Rope.read(fields, wide, hparams.rope_style)
    near_rope = Rope.read(
        fields,
        near,
        hparams.rope_style,
        "freq_base_swa",
        width_key="dimension_count_swa",
        scaled=False,
    )
    for n, count in enumerate(n_kv):
        if n_heads % count:
            raise fields.error(
                "{arch}.attention.head_count_kv",
                f"the query heads of block {n} do not share its key heads evenly",
                wanted=f"a divisor of {n_heads}",
                got=count,
            )
    return tuple(
        Kind(near, count, near_rope, window) if is_near else Kind(wide, count, rope)
        for count, is_near in zip(n_kv, pattern, strict=True)
    )
