"""What tells one tokenizer from another: token ids mean nothing with another one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mtpcore.errors import BatchError

if TYPE_CHECKING:
    from mtpcore.runtime.model import Model

__all__ = ["expect_model", "fingerprint"]


def fingerprint(model: Model) -> str:
    """Return a hash of how a model spells its tokens, 32 hexadecimal digits."""
    spelled = model.metadata.get("tokenizer.ggml.tokens")
    tokens = spelled if isinstance(spelled, list) else []
    hashed = hashlib.blake2b(f"{model.hparams.n_vocab}\0".encode(), digest_size=16)
    hashed.update("\0".join(map(str, tokens)).encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()


def expect_model(model: Model, what: str) -> Model:
    """Return a model, or what can be asked as one.

    Raises
    ------
    BatchError
        It is something else.
    """
    try:
        if model.hparams.n_vocab:
            return model
    except MemoryError:
        raise
    except Exception:  # none, and whatever a caller's object raises
        pass
    raise BatchError(what, wanted="a Model", got=type(model).__name__)
