"""Draft runs of blocks, by their own logits or by a post-head after them."""

import msgspec
import numpy as np
from programs import N_LOGITS, N_VOCAB

from harness.draft_runs import DraftRun, PostHead
from harness.head_runs import HIDDEN, HISTORY
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.draft import run_schedule
from mtpcore.sampling import Sampler, Scratch


def block(one, sequences, ids=None, n_logits=N_LOGITS):
    """Return the run of [(length, k, p_min, sampling)] whose drafts all come from one pass."""
    scratch = Scratch(n_logits, N_VOCAB + 3)
    rows = [length + max(k - 1, 0) for length, k, *_ in sequences]
    for seq, n in enumerate(rows):
        one.memory.reserve({seq: (0, n)})
    place = np.concatenate([np.arange(n) for n in rows]).astype(np.int32)
    ends = np.cumsum(rows)
    outputs = [np.arange(end - k, end) for end, (_, k, *_) in zip(ends, sequences, strict=True)]
    return DraftRun(
        batch=CheckedBatch(
            tokens=HISTORY[place],
            positions=place[:, None].copy(),
            seq=np.repeat(np.arange(len(sequences)), rows).astype(np.int32),
            place=place,
            outputs=np.concatenate(outputs).astype(np.int32),
            slots={"hidden": HIDDEN[place]},
        ),
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[:length] for length, *_ in sequences],
        n_prompt=[length // 2 for length, *_ in sequences],
        k=[k for _, k, _, _ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
        token_ids=ids,
        is_block=True,
    )


def after_block(one, after, sequences, *, passes=0, n_before=0, ids=None, n_logits=N_LOGITS):
    """Return the run of [(length, k, p_min, sampling)] whose drafts a post-head chooses.

    With ``n_before`` its rows begin with one that chooses nothing.
    """
    run = block(one, sequences, ids, n_logits)
    own = [k + n_before if k else 0 for k in run.k]
    rows = [(seq, place) for seq, n in enumerate(own) for place in range(n)]
    seq, place = np.array(rows, np.int32).reshape(-1, 2).T.copy()
    after.memory.reserve({seq: (0, n) for seq, n in enumerate(own) if n})
    newest = np.cumsum([length + max(k - 1, 0) for length, k, *_ in sequences])
    read = [np.arange(end - n, end) for end, n in zip(newest, own, strict=True)]
    pending = np.array([HISTORY[length - 1] for length, *_ in sequences], np.int32)
    batch = CheckedBatch(
        tokens=np.where(place <= n_before, pending[seq], 0).astype(np.int32),
        positions=place[:, None].copy(),
        seq=seq,
        place=place,
        outputs=np.flatnonzero(place >= n_before).astype(np.int32),
    )
    feeds = {"row": ("logits", "hidden"), "base": ("logits",)}
    feeds = {slot: feeds[slot] for slot in after.plan.program.slots()}
    return msgspec.structs.replace(
        run,
        batch=msgspec.structs.replace(run.batch, outputs=np.concatenate(read).astype(np.int32)),
        post_head=PostHead(
            plan=after.plan,
            memory=after.memory,
            batch=batch,
            feeds=feeds,
            passes=passes,
            n_known=n_before,
        ),
    )


def by_the_host(cross):
    """Let a Cross draft pass by pass, so that what a pass makes can be changed; return it."""
    plan = cross.contexts["draft"].runner.plan
    plan.run_schedule = run_schedule
    return cross
