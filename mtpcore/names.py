"""The names that users write; ``mtpcore`` has them all."""

from mtpcore.batch import Batch
from mtpcore.context import Context
from mtpcore.cross import Cross, Verdict, link
from mtpcore.decoding import Generator, Request, Stats
from mtpcore.draft_tree import DraftTree
from mtpcore.draft_vocabulary import DraftVocabulary
from mtpcore.errors import (
    BackendError,
    BatchError,
    BusyError,
    CapacityError,
    GraphError,
    LinkError,
    ModelFileError,
    MtpcoreError,
    PluginError,
    SamplingError,
)
from mtpcore.graph import GraphType
from mtpcore.loading import load_model
from mtpcore.model import Model
from mtpcore.output import Output
from mtpcore.proposer import Proposer
from mtpcore.sampling import Sampling
from mtpcore.spec import Link, Tap, Tree

__all__ = [
    "BackendError",
    "Batch",
    "BatchError",
    "BusyError",
    "CapacityError",
    "Context",
    "Cross",
    "DraftTree",
    "DraftVocabulary",
    "Generator",
    "GraphError",
    "GraphType",
    "Link",
    "LinkError",
    "Model",
    "ModelFileError",
    "MtpcoreError",
    "Output",
    "PluginError",
    "Proposer",
    "Request",
    "Sampling",
    "SamplingError",
    "Stats",
    "Tap",
    "Tree",
    "Verdict",
    "link",
    "load_model",
]
