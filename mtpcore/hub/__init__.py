"""Models that have names: those of the Hugging Face hub, and those that other programs hold.

Files of the hub lie in its own cache, so that what one program has fetched all of them find. The
stores of Ollama and LM Studio are read and never written.
"""

from mtpcore.hub.cache import cached_repository, held_in_cache, remove
from mtpcore.hub.choice import Offered, bits_from_eight, choose_model, list_offered
from mtpcore.hub.downloading import (
    CHECKPOINT,
    FetchReport,
    Repository,
    ask,
    download,
    is_offline,
    show_bar,
)
from mtpcore.hub.naming import CHECKPOINT_NAME, ModelName, StoreName, parse_name
from mtpcore.hub.stores import Held, find_in_store, held_in_stores

__all__ = [
    "CHECKPOINT",
    "CHECKPOINT_NAME",
    "Held",
    "ModelName",
    "Offered",
    "FetchReport",
    "Repository",
    "StoreName",
    "ask",
    "bits_from_eight",
    "cached_repository",
    "choose_model",
    "download",
    "find_in_store",
    "held_in_cache",
    "held_in_stores",
    "is_offline",
    "list_offered",
    "parse_name",
    "remove",
    "show_bar",
]
