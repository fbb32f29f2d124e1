"""Hyper-parameters of Gemma 4: layers that see a window and layers that see all differ in more."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec

from mtpcore.plugin import Experts, Fields, MixedHparams

_GemmaSize = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


class GemmaHparams(MixedHparams, frozen=True, kw_only=True):
    """What Gemma 4 adds.

    Attributes
    ----------
    width_by_layer : int
        Of the embedding that each layer has of each token; 0: there is none.
    n_sharing : int
        The last so many layers store nothing, and read what others store.
    softcap : float
        Logits stay below it; 0: they are as they are.
    spans : bool
        Rows of an image see each other, in layers with a window.
    experts : Experts or None
    """

    reads_target: ClassVar[bool] = False
    """Whether layers read what another model's store."""

    width_by_layer: _GemmaSize = msgspec.field(name="embedding_length_per_layer_input", default=0)
    n_sharing: _GemmaSize = msgspec.field(name="attention.shared_kv_layers", default=0)
    softcap: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="final_logit_softcapping", default=30.0
    )
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
        by_layer = fields.get("{arch}.embedding_length_per_layer_input", _GemmaSize, 0)
        return super().read_more(fields) | {
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
