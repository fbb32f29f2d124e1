"""All names of ``import mtpcore``, imported together when the first one is used."""

from mtpcore.cross import Cross, Verdict, link
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import Link, Tap, TreeShape
from mtpcore.decoding import Generator, Request, Stats
from mtpcore.discovery.loading import load_model
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
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
    StateError,
)
from mtpcore.graph import GraphType
from mtpcore.lm import LM, AsyncStream, Completion, CompletionStats, Piece, Stream
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model
from mtpcore.runtime.output import Output
from mtpcore.sampling import Sampling

__all__ = [
    "LM",
    "AsyncStream",
    "BackendError",
    "Batch",
    "BatchError",
    "BusyError",
    "CapacityError",
    "Completion",
    "CompletionStats",
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
    "Piece",
    "PluginError",
    "Proposer",
    "Request",
    "Sampling",
    "SamplingError",
    "StateError",
    "Stats",
    "Stream",
    "Tap",
    "TreeShape",
    "Verdict",
    "link",
    "load_model",
]
