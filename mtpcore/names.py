"""All names of ``import mtpcore``, imported together when the first one is used."""

from mtpcore.cross import Cross, Verdict, Verdicts, link
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.proposer import Proposer
from mtpcore.declarations.spec import Link, Tap, TreeShape
from mtpcore.decoding import FrameRequest, Frames, Generator, Request, Stats
from mtpcore.discovery.loading import load_model
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.drafting.lookup import Lookup
from mtpcore.drafting.lookup_texts import LookupTexts
from mtpcore.errors import (
    BackendError,
    BatchError,
    BusyError,
    CapacityError,
    GraphError,
    LinkError,
    ModelFileError,
    MtpcoreError,
    NoTokenError,
    PluginError,
    SamplingError,
    StateError,
)
from mtpcore.gguf.adapter import Adapter, load_adapter
from mtpcore.graph import GraphType
from mtpcore.lm import LM, AsyncStream, Completion, CompletionStats, Piece, Stream, ToolCall
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.layout import (
    audio_positions,
    image_positions,
    text_positions,
    video_positions,
)
from mtpcore.runtime.model import Model
from mtpcore.runtime.output import Output
from mtpcore.runtime.prompt import Audio, Codes, Image, Prompt, Rows, Video
from mtpcore.sampling import Grammar, PureProcessor, Sampling

__all__ = [
    "Adapter",
    "LM",
    "AsyncStream",
    "Audio",
    "BackendError",
    "Batch",
    "BatchError",
    "BusyError",
    "CapacityError",
    "Codes",
    "Completion",
    "CompletionStats",
    "Context",
    "Cross",
    "DraftTree",
    "DraftVocabulary",
    "FrameRequest",
    "Frames",
    "Generator",
    "Grammar",
    "GraphError",
    "GraphType",
    "Image",
    "Link",
    "LinkError",
    "Lookup",
    "LookupTexts",
    "Model",
    "ModelFileError",
    "MtpcoreError",
    "NoTokenError",
    "Output",
    "Piece",
    "PluginError",
    "Prompt",
    "Proposer",
    "PureProcessor",
    "Request",
    "Rows",
    "Sampling",
    "SamplingError",
    "StateError",
    "Stats",
    "Stream",
    "Tap",
    "ToolCall",
    "TreeShape",
    "Verdict",
    "Verdicts",
    "Video",
    "audio_positions",
    "image_positions",
    "link",
    "load_adapter",
    "load_model",
    "text_positions",
    "video_positions",
]
