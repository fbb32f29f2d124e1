"""A signal while weights are packed: Ctrl-C leaves a model that can be used, and a process ends.

A process packs, stops itself when a part is packed, and goes on with a signal that came meanwhile;
so the signal is there in the middle, however fast the machine packs.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness.generated import Sizes, write_generated

TRIES = 5
WIDE = Sizes(width=1024, n_ff=4096, n_layers=3)
LONG_ENOUGH = 0.15  # seconds after which a plan asks Python whether a signal came

COMMON = """
import json, os, signal, sys, threading, time
import numpy as np
import mtpcore
from mtpcore.backends.cpu import backend

backend.WORTH_PACKING_LATER = 0
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
path, threads = sys.argv[1], int(sys.argv[2])
model = mtpcore.load_model(path)
context = mtpcore.Context(model, 64, threads=threads)


def matrices():
    made = [made for key, made in list(model.packed.items()) if key[1] != "vector"]
    return [one for some in made for one in (some if isinstance(some, list) else [some])]


def packed():
    return sum(one.nbytes * one.packed_share for one in matrices())


stopped_at = 0


def stop():
    global stopped_at
    while stopped_at < 1 << 22:
        try:
            stopped_at = packed()
        except RuntimeError:
            pass  # a thread that converts has just added its matrix
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def write(context):
    tokens, logits = [5, 6, 7], []
    while len(tokens) < 12:
        context.remove(0)
        logits.append(context.process(mtpcore.Batch.of(tokens, outputs="all")).logits)
        tokens.append(int(logits[-1][-1].argmax()))
    return tokens, np.concatenate(logits)


"""

INTERRUPTED = """
wanted, wanted_logits = write(mtpcore.Context(mtpcore.load_model(path, repack=False), 64))
if sys.argv[3] == "packing":
    context.prepare(pack=False)
threading.Thread(target=stop, daemon=True).start()
try:
    context.prepare()
    at = -1
except KeyboardInterrupt:
    at = packed()
seen = threading.active_count()
time.sleep(0.05)
rests = packed() == at
texts = [write(context)]
context.prepare()
texts.append(write(context))
print(json.dumps({
    "share": at / packed(),
    "more": at - stopped_at,
    "rests": rests,
    "threads": seen,
    "same": [
        tokens == wanted and np.array_equal(logits, wanted_logits) for tokens, logits in texts
    ],
    "left": context.bytes_to_pack,
    "mapped": sum(one.is_mapped for one in matrices()),
}))
"""

ENDED = """
if sys.argv[3] == "packing":
    context.prepare(pack=False)
threading.Thread(target=stop, daemon=True).start()
context.prepare()
time.sleep(0.2)  # the process is still told to stop, where it had no time to
print("packed")
"""

ENDED_BY_A_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" + ENDED

ENDED_BESIDE = """
context.prepare(pack=False)
threading.Thread(target=context.prepare, daemon=True).start()
stop()
time.sleep(60)
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Matrices that are packed, and some of a type without kernels, which are converted."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "packing": write_generated(folder / "f32.gguf", "llama", "F32", sizes=WIDE),
        "converting": write_generated(folder / "tq2_0.gguf", "llama", "TQ2_0", sizes=WIDE),
    }


def run(program, paths, what, threads, number):
    """Send a signal to a program that has stopped; return how it ends and what it prints then."""
    words = [sys.executable, "-c", COMMON + program, str(paths[what]), str(threads), what]
    path = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "begun\n", process.communicate()
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(LONG_ENOUGH)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        said, wrong = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said, wrong


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("what", ["packing", "converting"])
def test_an_interrupt_ends_it_and_the_model_can_be_used(paths, what, threads):
    """Nothing is packed any more, no thread goes on, and texts and bits are those of the file."""
    # One thread has just begun its next matrix then; of two the other one may come to an end.
    is_strict = what == "converting" and threads == 1
    for _ in range(TRIES):  # a busy machine may stop too late
        code, said, wrong = run(INTERRUPTED, paths, what, threads, signal.SIGINT)
        assert (code, wrong) == (0, "")
        found = json.loads(said)
        assert found["same"] == [True, True]
        assert (found["left"], found["mapped"]) == (0, 0)
        if 0 < found["share"] < 1 and not (is_strict and found["more"]):
            break
    assert 0 < found["share"] < 1
    assert not (is_strict and found["more"])  # no matrix is converted to its end
    assert found["rests"]
    assert found["threads"] == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("what", ["packing", "converting"])
def test_a_process_that_is_told_to_end_does(paths, what, threads):
    code, said, wrong = run(ENDED, paths, what, threads, signal.SIGTERM)
    assert (code, said, wrong) == (-signal.SIGTERM, "", "")


@pytest.mark.parametrize("what", ["packing", "converting"])
def test_a_handler_may_end_the_process(paths, what):
    code, said, wrong = run(ENDED_BY_A_HANDLER, paths, what, 2, signal.SIGTERM)
    assert (code, said, wrong) == (3, "", "")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_process_ends_while_another_thread_packs(paths, threads):
    code, said, wrong = run(ENDED_BESIDE, paths, "packing", threads, signal.SIGINT)
    assert (code, said) == (-signal.SIGINT, "")
    assert wrong.endswith("KeyboardInterrupt\n")
