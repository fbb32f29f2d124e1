"""The conformance kit: checks for tests of backends, trunks and drafters.

``mtpcore.testing.machine`` needs ``hypothesis`` and is imported by itself.
"""

from mtpcore.testing.drafts import check_drafts
from mtpcore.testing.files import check_layouts, check_ties
from mtpcore.testing.graphs import check_graphs
from mtpcore.testing.pairs import cover_pairs
from mtpcore.testing.readers import check_readers
from mtpcore.testing.rows import Batching, check_rows
from mtpcore.testing.runner import Runner, Weights
from mtpcore.testing.subject import Subject
from mtpcore.testing.texts import Texts, check_broken_rows, check_texts, cover_texts

__all__ = [
    "Batching",
    "Runner",
    "Subject",
    "Texts",
    "Weights",
    "check_broken_rows",
    "check_drafts",
    "check_graphs",
    "check_layouts",
    "check_readers",
    "check_rows",
    "check_texts",
    "check_ties",
    "cover_pairs",
    "cover_texts",
]
