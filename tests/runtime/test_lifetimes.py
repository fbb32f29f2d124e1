"""What may still be called once a model is closed, and in a process that was forked."""

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import numpy as np
import pytest
import toy

from mtpcore import Batch, Context, Generator, ModelFileError, Sampling, link, load_model

ROOT = Path(__file__).parents[2]
PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize("repack", [True, False], ids=["packed", "mapped"])
def test_contexts_go_on_when_their_model_is_closed(repack):
    text = Generator(link(Context(load_model("demo"), 64)), sampling=Sampling.greedy())
    wanted = [*text.generate(PROMPT, max_tokens=12)]
    model = load_model("demo", repack=repack)
    cross = link(Context(model, 64))
    plain, late = Context(model, 64), Context(model, 64)
    for one in (cross, plain):
        one.prepare()
    model.close()
    model.close()
    generator = Generator(cross, draft=3, sampling=Sampling.greedy())
    assert [*generator.generate(PROMPT, max_tokens=12)] == wanted
    for make in (lambda: Context(model, 64), lambda: link(plain)):
        with pytest.raises(ModelFileError, match="the file is closed"):
            make()
    with pytest.raises(ModelFileError, match="the file is closed"):
        late.process(Batch.of(PROMPT))
    assert late.length(0) == 0
    assert plain.process(Batch.of(PROMPT)).logits.shape == (1, model.hparams.n_vocab)
    assert model.tokenizer.decode(model.tokenizer.encode("a b")) == "a b"


def test_an_output_outlives_its_context():
    """Its arrays are its own: no later act writes to them, and none has to be held for them."""
    context = Context(load_model("demo"), 64, taps=["hidden"])
    output = context.process(Batch.of(PROMPT, outputs="all"))
    before = output.logits.tobytes(), output.tap("hidden").tobytes()
    context.remove(0)
    context.process(Batch.of(PROMPT[::-1], outputs="all"))
    del context
    assert (output.logits.tobytes(), output.tap("hidden").tobytes()) == before
    views = output.logits[:2], output.tap("hidden").T
    copies = [view.copy() for view in views]
    del output
    gc.collect()
    assert all(map(np.array_equal, views, copies))


def run(script):
    """Run a script in a process of its own, which may fork while it has threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FORKED = """
    import os
    from harness.held import Held
    from mtpcore import Batch, BusyError, Context, load_model

    model = load_model("demo")
    mine, held = Context(model, 64, threads=2), Context(model, 64, threads=2)
    mine.process(Batch.of([5, 6, 7]))

    def go_on():
        mine.process(Batch.of([8], pos=3))
        return mine.digest(0).hex()

    def in_child(do):
        read, write = os.pipe()
        if not (child := os.fork()):
            os.write(write, do().encode())
            os._exit(0)
        os.waitpid(child, 0)
        return os.read(read, 1000).decode()
"""


def test_a_forked_process_goes_on_with_its_contexts():
    """Threads of the pool are not copied; the child starts its own, and writes to pages its own."""
    said = run(FORKED + "    print(in_child(go_on), in_child(go_on), go_on())")
    assert len(set(said.split())) == 1


def test_a_fork_in_the_middle_of_another_thread_s_act_leaves_that_context_refused():
    script = """
    def use():
        new = Context(model, 64, threads=2)
        new.process(Batch.of([5, 6, 7]))
        new.process(Batch.of([8], pos=3))
        try:
            held.remove(0)
        except BusyError as error:
            return f"{new.digest(0) == bytes.fromhex(go_on())}, {error}"

    with Held(Context.process, lambda: held.process(Batch.of([5]))):
        print(in_child(use))
    held.remove(0)
    """
    said = run(FORKED + script)
    assert said.startswith("True, Context.process() was running in a thread that is not known here")
    assert "Context.remove() was called from thread 'MainThread'" in said
    assert "fork" in said.partition("fix:")[2]


@pytest.mark.parametrize("thread", ["plans", "borrows"])
def test_a_fork_while_another_thread_makes_contexts_leaves_the_child_free_to_make_its_own(thread):
    """What that thread had locked is free: only the thread that forked goes on in the child."""
    script = """
    import signal
    from threading import Event, Thread
    from mtpcore import link

    inside, go_on = Event(), Event()
    target, head = load_model("demo:eagle3"), load_model("demo:eagle3-draft")

    def hold():
        with model.lock if THREAD == "plans" else head.lock:
            inside.set()
            go_on.wait()

    def make():
        signal.alarm(60)
        new = Context(model, 64, threads=2)
        new.process(Batch.of([5, 6, 7, 8]))
        cross = link(Context(target, 64, threads=2), draft_model=head)
        cross.llm.process(Batch.of([5, 6, 7]))
        return f"{len(cross.draft(0, 2))} {new.digest(0).hex()}"

    holder = Thread(target=hold)
    holder.start()
    inside.wait()
    found = in_child(make)
    go_on.set()
    holder.join()
    print(found == make(), found)
    """
    said = run(FORKED + script.replace("THREAD", repr(thread)))
    assert said.startswith("True 2 ")


def test_a_generator_keeps_its_cross_and_gives_the_file_up_with_it(tmp_path):
    """Nobody else needs to hold context, Cross or model, and all are gone when it is."""
    context = Context(load_model("demo"), 64)
    model = weakref.ref(context.model)
    wanted = [*Generator(context, sampling=Sampling.greedy()).generate(PROMPT, max_tokens=8)]
    generator = Generator(link(Context(context.model, 64)), draft=3, sampling=Sampling.greedy())
    del context
    gc.collect()
    assert [*generator.generate(PROMPT, max_tokens=8)] == wanted
    del generator
    gc.collect()
    assert model() is None


def test_a_context_keeps_its_model(tmp_path):
    """Nobody else needs to hold it."""
    context = Context(toy.load(tmp_path, toy.trunk_tensors()), 64)
    assert context.process(Batch.of([1, 2])).logits.shape == (1, toy.N_VOCAB)
