"""Models that draft for others: a trunk's declaration as a draft model, and what is like one."""

from __future__ import annotations

from mtpcore.declarations.spec import TARGET, DrafterSpec, ModelSpec

__all__ = ["as_draft_model", "is_independent"]


def as_draft_model(trunk: ModelSpec) -> DrafterSpec:
    """Return the declaration with which a trunk drafts for a model of the same vocabulary.

    It drafts token by token as a head does, and reads nothing of its target but the text: no feeds,
    and so nothing to recycle. (Leviathan, Kalman and Matias 2023, arXiv 2211.17192; Chen et al.
    2023, arXiv 2302.01318.)
    """
    return DrafterSpec(
        name="draft_model",
        fit=trunk.fit,
        build=trunk.build,
        hparams=trunk.hparams,
        standalone=True,
        limit=15,  # with the pending token, the 16 rows that recurrent layers can take back
        acceptance=(0.4, 0.8),
        plugin=trunk.plugin,
        version=trunk.version,
        evidence="arXiv 2302.01318, table 1: 2.0 to 2.7 tokens a pass with 4 drafts, 4 B for 70 B",
    )


def is_independent(spec: DrafterSpec) -> bool:
    """Say whether a drafter reads nothing of its target but the text, and has tables of its own."""
    named = [name for tie in spec.ties for name in tie.candidates]
    borrows = any(name.startswith(TARGET) for name in named)
    return spec.standalone and not (spec.feeds or spec.vocabulary or borrows)
