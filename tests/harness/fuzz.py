"""Load damaged files and run them, each in a process of its own with little memory.

``python -m harness.fuzz FOLDER BEGIN END`` prints a JSON line for each seed: how it ended
("ran", "refused", or what went wrong) and the most memory it held. Under AddressSanitizer, which
reserves address space without end, memory is not limited.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

import mtpcore
from harness.damage import write_damaged, write_sound

ADDRESS_SPACE = 3 << 30
SECONDS = 120
WATCHED = "libasan" in os.environ.get("LD_PRELOAD", "")


def use(path):
    """Load, make a context, process once; draft where there is a head."""
    with mtpcore.load_model(path) as model:
        context = mtpcore.Context(model, n_ctx=64, threads=1)
        cross = mtpcore.link(context) if model.drafters else None
        out = context.process(mtpcore.Batch.of([1, 2, 3, 1, 0], outputs="all"))
        assert out.logits.shape == (5, model.hparams.n_vocab)
        if cross is not None:
            settings = mtpcore.Sampling(temperature=0.8, seed=1)
            verdict = cross.verify({0: cross.draft(0, 3, settings)}, settings)[0]
            assert all(0 <= token < model.hparams.n_vocab for token in verdict.tokens)
            cross.accept(0)


def run_child(path, said):
    """Say on the pipe how it went, and leave without cleaning up what the parent owns."""
    if not WATCHED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.alarm(SECONDS)  # a hang is a failure
    try:
        use(path)
        how = "ran"
    except mtpcore.MtpcoreError as error:
        how = f"refused: {error.what}" if error.what else "refused without a word"
    except BaseException:
        how = traceback.format_exc()
    os.write(said, how.encode()[-2000:])
    os._exit(0)


def run(path):
    """Return how the file ended and the largest memory, in bytes."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        run_child(path, said)
    os.close(said)
    with open(heard, "rb") as pipe:
        how = pipe.read().decode()
    _, status, usage = os.wait4(child, 0)
    if os.WIFSIGNALED(status):
        how = signal.Signals(os.WTERMSIG(status)).name
    elif status:
        how = f"exit status {os.waitstatus_to_exitcode(status)}"
    return how, usage.ru_maxrss << 10


def main(folder, begin, end):
    logging.disable()
    np.seterr(all="ignore")
    path = Path(folder) / "damaged.gguf"
    write_sound(path)
    use(path)  # what every child would import and look up is there when it is forked
    for seed in range(int(begin), int(end)):
        path.unlink(missing_ok=True)
        with contextlib.suppress(Exception):  # the writer cannot write all that may be found
            write_damaged(path, seed)
        if path.exists():
            print(json.dumps({"seed": seed, "how": judge(path)}), flush=True)


def judge(path):
    """Run a file and say how it ended, or that it took too much memory."""
    how, peak = run(path)
    allowed = 2 * path.stat().st_size + (256 << 20)
    if peak > allowed and not WATCHED:
        return f"{peak >> 20} MB where {allowed >> 20} are allowed; {how}"
    return how


if __name__ == "__main__":
    main(*sys.argv[1:])
