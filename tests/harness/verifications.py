"""What verifies the drafts of a schedule, run with them, and the same batch with these drafts."""

import msgspec
import numpy as np
from programs import N_LOGITS, N_VOCAB

from harness.head_runs import HIDDEN, HISTORY
from mtpcore.backends.base import CHOSEN, CheckedBatch, FusedSampling, Verification
from mtpcore.sampling import Sampler, Scratch


def with_verification(schedule, target, held, sampling):
    """Return a schedule with its verification, and the batch of that as it is now.

    Sequences hold so many rows in the target. Positions are other numbers than places. Without
    ``sampling`` logits are wanted.
    """
    tokens, place, seq, texts, first = [], [], [], [], []
    program, scratch = target.plan.program, Scratch(N_LOGITS, N_VOCAB + 3)
    history, slots = HISTORY % program.n_embeddings, program.slots()
    for i, length in enumerate(held):
        n = 1 + len(schedule.round.verified.get(i, ()))
        rows = {slot: HIDDEN[:length] for slot in slots}
        target.feed(history[:length], seq=i, place=0, outputs=[], **rows)
        target.memory.reserve({i: (length, length + n)})
        first.append(len(tokens))
        tokens += [int(history[length]), *[0] * (n - 1)]
        place += range(length, length + n)
        seq += [i] * n
        text = np.append(history[:length], tokens[first[i] :]).astype(np.int32)
        texts += [text[: length + 1 + m] for m in range(n)]
    n = len(seq)
    fused = FusedSampling(
        samplers=[Sampler(sampling, scratch)] * n,
        indices=[at + 1 for at in place],
        texts=texts,
        n_prompt=[0] * n,
    ) if sampling is not None else None  # fmt: skip
    batch = CheckedBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(place, np.int32)[:, None] + 5,
        seq=np.array(seq, np.int32),
        place=np.array(place, np.int32),
        outputs=np.arange(n, dtype=np.int32),
        slots={slot: HIDDEN[:n].copy() for slot in slots},
        fused_sampling=fused,
    )
    asked = Verification(plan=target.plan, memory=target.memory, batch=batch, first=first)
    return msgspec.structs.replace(schedule, verification=asked), batch


def check_verified(schedule, batch, drafted):
    """Hold what was run with the drafts against the ``batch`` with these drafts.

    Return whether it was run: not where a draft is missing.
    """
    asked, verified = schedule.verification, schedule.round.verified
    if asked.arrays is None:
        return False
    assert all(drafted.tokens[draft] >= 0 for its in verified.values() for draft in its)
    trees = [schedule.round.tree_of(text, drafted) for text in range(len(asked.first))]
    right = in_place_of(batch, asked.first, trees)
    assert asked.batch.positions.tolist() == right.positions.tolist()
    assert _parents(asked.batch) == _parents(right)
    if right.fused_sampling is not None:
        assert [*asked.batch.fused_sampling.indices] == right.fused_sampling.indices
    made = {name: np.array(rows) for name, rows in asked.arrays.items()}
    wanted = asked.plan.run(right, asked.memory)
    assert {*made} == {*wanted} >= {"logits" if batch.fused_sampling is None else CHOSEN}
    for name, rows in wanted.items():
        assert made[name].tobytes() == np.asarray(rows).tobytes(), name
    return True


def in_place_of(batch, first, trees):
    """Return a batch with (tokens, parents) of trees in the place of each text's drafts."""
    tokens, positions = batch.tokens.copy(), batch.positions.copy()
    parent, fused = np.full(len(tokens), -1, np.int32), batch.fused_sampling
    texts, indices = ([*fused.texts], [*fused.indices]) if fused else ([], [])
    for begin, tree in zip(first, trees, strict=True):
        for row, (token, above) in enumerate(zip(*tree, strict=True), start=begin + 1):
            before = begin + 1 + above
            tokens[row], parent[row], positions[row] = token, before, positions[before] + 1
            if fused:
                texts[row] = np.append(texts[before], np.int32(token))
                indices[row] = indices[before] + 1
    if fused:
        fused = msgspec.structs.replace(fused, texts=texts, indices=indices)
    return msgspec.structs.replace(
        batch, tokens=tokens, positions=positions, parent=parent, fused_sampling=fused
    )


def _parents(batch):
    """Return the row before each: of a chain, the one before it of its sequence."""
    if batch.parent is not None:
        return batch.parent.tolist()
    newest, above = {}, []
    for row, seq in enumerate(batch.seq.tolist()):
        above.append(newest.get(seq, -1))
        newest[seq] = row
    return above
