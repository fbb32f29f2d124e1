"""Texts read by a model, and by another one beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from mtpcore.errors import BatchError, ModelFileError
from mtpcore.evaluation.figures import Figures, Rows, compare_rows
from mtpcore.runtime.adapters import AdapterChoice
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.model import Model

__all__ = ["Evaluation", "evaluate"]

_VALUES = 1 << 22
"""Logits that are compared at once: some 32 MB in float64, for each model."""


class Evaluation(msgspec.Struct, frozen=True):
    """How a model reads some texts.

    Attributes
    ----------
    n_chunks : int
        Pieces of ``n_ctx`` tokens that were read.
    figures : Figures
        Of all texts.
    texts : dict of str to Figures
        Of each.
    """

    n_chunks: int
    figures: Figures
    texts: dict[str, Figures]


def evaluate(
    context: Context,
    texts: Mapping[str, str],
    *,
    against: Context | None = None,
    n_ctx: int = 512,
    n_chunks: int | None = None,
    report: Callable[[int, int], None] | None = None,
    adapters: AdapterChoice = (),
    against_adapters: AdapterChoice = (),
) -> Evaluation:
    """Read texts, and return how well what comes was predicted.

    As llama.cpp's ``perplexity`` does: each text is cut into chunks of ``n_ctx`` tokens, each is
    read anew, from the vocabulary's first token where it adds one, and the tokens of its second
    half count. What is left at the end of a text does not. Memory is bounded whatever the texts'
    length, but for four numbers of each token.

    Parameters
    ----------
    context : Context
        Empty, for one sequence of ``n_ctx`` tokens; it is empty afterwards.
    texts : mapping of str to str
        By names.
    against : Context, optional
        A context of the reference: another file of the same model.
    n_ctx : int
        At least 4.
    n_chunks : int, optional
        Most chunks of all texts; default: all that there are.
    report : callable, optional
        Called as ``report(done, total)`` with tokens.
    adapters, against_adapters : mapping of str to float, or sequence of str
        Those of the contexts' adapters with which the model, and the reference, read.

    Raises
    ------
    ModelFileError
        A text has no whole chunk, the reference has other tokens, or a logit is no number.
    BatchError
        A size that makes no sense.
    """
    if n_ctx < 4 or (n_chunks is not None and n_chunks < 1):
        raise BatchError(
            "too few tokens to evaluate", wanted="n_ctx >= 4, n_chunks >= 1", got=(n_ctx, n_chunks)
        )
    model = context.model
    _check(model, None if against is None else against.model)
    chunks = _chunks(model, texts, n_ctx)
    if n_chunks is not None:
        chunks = chunks[:n_chunks]
    readers = [(context, adapters)]
    if against is not None:
        readers.append((against, against_adapters))
    found: dict[str, list[Rows]] = {}
    for done, (name, tokens) in enumerate(chunks):
        for rows in _read(readers, tokens, name):
            found.setdefault(name, []).append(rows)
        if report is not None:
            report((done + 1) * n_ctx, len(chunks) * n_ctx)
    joined = {name: Rows.joined(rows) for name, rows in found.items()}
    return Evaluation(
        len(chunks),
        Rows.joined([*joined.values()]).figures(),
        {name: rows.figures() for name, rows in joined.items()},
    )


def _check(model: Model, other: Model | None) -> None:
    if model.program().whole_slot is not None:
        raise ModelFileError(
            "the model answers to a text that an encoder reads, and predicts none of its own",
            where=str(model.path),
            fix="evaluate a model that continues texts",
        )
    if other is None:
        return
    ours, theirs = (one.metadata.get("tokenizer.ggml.tokens") for one in (model, other))
    same_size = model.hparams.n_vocab == other.hparams.n_vocab
    if not same_size or (ours is not None and theirs is not None and ours != theirs):
        raise ModelFileError(
            "the reference has other tokens: it is another model",
            where=str(other.path),
            wanted=f"the {model.hparams.n_vocab} tokens of {model.path}",
            got=f"{other.hparams.n_vocab} tokens",
            fix="give another file of the same model",
        )


def _chunks(model: Model, texts: Mapping[str, str], n_ctx: int) -> list[tuple[str, np.ndarray]]:
    """Return the chunks of texts by their names, with the first token where one is added."""
    chunks: list[tuple[str, np.ndarray]] = []
    tokenizer = model.tokenizer
    first = tokenizer.bos if tokenizer.vocabulary.add_bos else None
    for name, text in texts.items():
        tokens = np.array(tokenizer.encode(text), np.int32)
        whole = len(tokens) // n_ctx
        if not whole:
            raise ModelFileError(
                "the text is too short to be evaluated",
                where=name,
                wanted=f"at least {n_ctx} tokens",
                got=len(tokens),
                fix="give a longer text, or smaller chunks (-c, n_ctx=)",
            )
        for chunk in tokens[: whole * n_ctx].reshape(whole, n_ctx).copy():
            if first is not None:
                chunk[0] = first
            chunks.append((name, chunk))
    return chunks


def _read(
    readers: Sequence[tuple[Context, AdapterChoice]], tokens: np.ndarray, name: str
) -> Iterator[Rows]:
    """Yield what contexts say of the second half of a chunk, some rows at a time."""
    contexts = [context for context, _ in readers]
    begin, end = len(tokens) // 2, len(tokens) - 1
    step = max(1, _VALUES // contexts[0].model.hparams.n_vocab)
    try:
        for context, adapters in readers:
            if adapters:
                context.adapt(0, adapters)
            context.process(Batch.of(tokens[:begin], outputs="none"))
        for at in range(begin, end, step):
            some = slice(at, min(at + step, end))
            batch = [Batch.of(tokens[some], pos=at, outputs="all") for _ in contexts]
            logits = [c.process(one).logits for c, one in zip(contexts, batch, strict=True)]
            for context, values in zip(contexts, logits, strict=True):
                if not np.isfinite(values).all():
                    raise ModelFileError(
                        "the model's logits are no numbers",
                        where=f"{context.model.path}, {name}",
                        fix="the file is damaged, or its types are too coarse: take another",
                    )
            yield compare_rows(logits[0], tokens[at + 1 : some.stop + 1], *logits[1:])
    finally:
        for context in contexts:
            context.remove(0)
