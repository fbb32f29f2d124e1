"""How well a model predicts texts, and how far it is from another file of the same model."""

from mtpcore.evaluation.figures import Divergence, Estimate, Figures, Rows, compare_rows
from mtpcore.evaluation.texts import Evaluation, evaluate

__all__ = [
    "Divergence",
    "Estimate",
    "Evaluation",
    "Figures",
    "Rows",
    "compare_rows",
    "evaluate",
]
