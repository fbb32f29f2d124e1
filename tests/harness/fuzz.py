"""Load files that somebody has tampered with and run them, each in a process with little memory.

``python -m harness.fuzz KIND FOLDER BEGIN END`` prints a JSON line for each seed: how it ended
("ran", "refused", or what went wrong) and the most memory it held. Kinds are ``damaged`` (bytes;
``harness.damage``) and ``reshaped`` (files that parse; ``harness.reshape``). Under
AddressSanitizer, which reserves address space without end, memory is not limited.
"""

import contextlib
import json
import logging
import random
import sys
from functools import partial
from pathlib import Path

import numpy as np

import mtpcore
from harness.confined import WATCHED, confined
from harness.damage import write_damaged, write_sound
from harness.reshape import write_reshaped
from mtpcore import Batch, Sampling

SECONDS = 120
N_ROUNDS = 3


def use(paths, seed=None):
    """Load a model and what drafts for it, read a text, draft and verify.

    The seed draws how: which settings, which drafter. Without one they are the usual ones.
    """
    chance, settings = random.Random(seed), {"threads": 1}
    if seed is not None:
        settings = {
            "n_seq_max": 2,
            "n_batch": chance.choice((4, 512)),
            "kv_dtype": chance.choice(("f16", "f32", "q8_0")),
            "threads": chance.choice((1, 1, 2)),
        }
    with contextlib.ExitStack() as opened:
        repack = [seed is None or chance.random() < 0.6 for _ in paths]
        models = [
            opened.enter_context(mtpcore.load_model(path, repack=packed))
            for path, packed in zip(paths, repack, strict=True)
        ]
        n_vocab = models[0].hparams.n_vocab
        context = mtpcore.Context(models[0], n_ctx=64, **settings)
        text = [chance.randrange(n_vocab) for _ in range(6)]
        assert context.process(Batch.of(text, outputs="all")).logits.shape == (6, n_vocab)
        context.remove(0)
        if models[-1].drafters:
            cross = link(models, context, chance)
            cross.prepare()  # weights are read when plans are made
            try:
                run_rounds(cross, n_vocab, chance)
            except mtpcore.NoTokenError:
                pass  # weights that are no numbers make logits of which none can be chosen
            except mtpcore.MtpcoreError as error:
                raise AssertionError(f"linked, and refused only then: {error}") from error


def link(models, context, chance):
    """Link one of the drafters, as a chain or a tree, with all of its tokens or some."""
    drafter = chance.choice(models[-1].drafters)
    tree, vocabulary = None, None
    if chance.random() < 0.2:
        tree = mtpcore.TreeShape(depth=2, width=2, n_nodes=4)
    if chance.random() < 0.2:
        tokens = sorted({chance.randrange(models[0].hparams.n_vocab) for _ in range(40)})
        vocabulary = mtpcore.DraftVocabulary(tokens, "")
    own_file = models[-1] if len(models) > 1 else None
    return mtpcore.link(
        context, drafter.name, draft_model=own_file, tree=tree, draft_vocabulary=vocabulary
    )


def run_rounds(cross, n_vocab, chance):
    """Decode all sequences: what was linked drafts, and every token is one of the model's."""
    sampling = {0: Sampling(temperature=0.8, seed=1), 1: Sampling(temperature=0.0)}
    if chance.random() < 0.3:
        sampling[0] = Sampling(temperature=1.5, seed=2, top_k=5, repetition_penalty=1.1)
    sampling = {seq: sampling[seq] for seq in range(cross.llm.n_seq_max)}
    for seq in sampling:
        text = [chance.randrange(n_vocab) for _ in range(4)]
        cross.llm.process(Batch.of(text, seq=seq))
    for _ in range(N_ROUNDS):
        p_min = chance.choice((0.0, 0.0, 0.1))
        wanted = {seq: 3 - seq for seq in sampling}
        drafts = cross.draft(wanted, sampling=sampling, p_min=p_min)
        for seq, verdict in cross.verify(drafts, sampling).items():
            assert all(0 <= token < n_vocab for token in verdict.tokens), verdict
            cross.accept(seq)
    assert cross.invalid == 0  # drafts that are no tokens


def write_whole_or_broken(folder, seed):
    """Write a damaged file and return its path in a list; none where it cannot be written."""
    path = folder / "damaged.gguf"
    path.unlink(missing_ok=True)
    with contextlib.suppress(Exception):  # the writer cannot write all that may be found
        write_damaged(path, seed)
    return [path] if path.exists() else []


KINDS = {"damaged": write_whole_or_broken, "reshaped": write_reshaped}


def judge(paths, seed=None):
    """Run files and say how it ended, or that it took too much memory."""
    how, peak = confined(partial(use, paths, seed), SECONDS)
    allowed = 2 * sum(path.stat().st_size for path in paths) + (256 << 20)
    if peak > allowed and not WATCHED:
        return f"{peak >> 20} MB where {allowed >> 20} are allowed; {how}"
    return how


def main(kind, folder, begin, end):
    logging.disable()
    np.seterr(all="ignore")
    sound = Path(folder) / "sound.gguf"
    write_sound(sound)
    use([sound])  # what every child would import and look up is there when it is forked
    for seed in range(int(begin), int(end)):
        paths = KINDS[kind](Path(folder), seed)
        if paths:
            print(json.dumps({"seed": seed, "how": judge(paths, seed)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
