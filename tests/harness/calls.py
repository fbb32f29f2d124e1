"""Call every public door with values that nobody should give, in a process with little memory.

``python -m harness.calls SHARE FIRST`` prints a JSON line for each call that went wrong, and one
that counts all. Each parameter of each door gets the values of the zoo, one of ``SHARE`` of them
(1: all); with ``FIRST`` another part. A call may do as it is told, or raise:

- ``MtpcoreError``, always: a caller can tell what went wrong from what is broken in mtpcore;
- ``Hostile``, where the parameter is a function that the caller wants called: what it raises is the
  caller's own;
- ``AssertionError``, where the door is a check of ``mtpcore.testing``.

``TypeError`` is Python's own for parameters that are missing or unknown, and no call here has
these. After an error everything is as it was: digests, lengths, pending tokens, requests.
"""

import asyncio
import inspect
import itertools
import json
import logging
import os
import resource
import signal
import sys
import traceback
from collections import Counter

import numpy as np

import mtpcore
from harness.doors import walk
from harness.world import World
from harness.zoo import ZOO, Hostile

ADDRESS_SPACE = 3 << 30
CPU_SECONDS, SECONDS = 10, 120
"""A call that computes for longer, or waits for longer, hangs."""

WATCHED = "libasan" in os.environ.get("LD_PRELOAD", "")

CALLED = {
    ("Generator", "lengths"),
    ("Context.process", "choices"),
    ("Cross.verify", "processors"),
    ("Cross.pending", "processor"),
    ("LM.generate", "logits_processor"),
    ("LM.chat", "logits_processor"),
    ("LM.run_between_rounds", "function"),
    ("guess", "answer"),
    ("testing.check_drafts", "scores"),
}
"""Parameters of which something is called, or walked through, that may raise what it likes."""


def calls(share, first):
    """Yield (door, {parameter: value's name}): each parameter with its part of the zoo."""
    number = itertools.count(first)
    for one in walk():
        yield one, {}  # as it is meant: whoever is refused here is refused for another reason below
        for name in one.names:
            for value in ZOO:
                if (one.name, name) in CALLED and value == "class":
                    continue  # what a class says of such arguments is its own
                if next(number) % share == 0:
                    yield one, {name: value}
        for name, other in itertools.pairwise(one.names):
            for value, second in zip(ZOO, reversed(ZOO), strict=True):
                if next(number) % (8 * share) == 0:
                    yield one, {name: value, other: second}


def attempt(world, one, chosen):
    """Call a door; return how it ended and whether the world is to be made anew."""
    arguments = {name: make(world) for name, make in one.sound.items() if name not in chosen}
    arguments |= {name: ZOO[value]() for name, value in chosen.items()}
    before = world.state()
    try:
        answer = one.call(world, **arguments)
        if inspect.iscoroutine(answer):
            asyncio.run(answer)
    except mtpcore.MtpcoreError as error:
        if not str(error):
            return "refused without a word", True
        how = "refused"
    except one.allows:
        how = "raised as it may"
    except Hostile:
        if not any((one.name, name) in CALLED for name in chosen):
            return traceback.format_exc(), True
        how = "raised as it may"
    except BaseException:
        return traceback.format_exc(), True
    else:
        return "done", True
    now = world.state()
    if now != before:
        changed = [i for i, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1]]
        return f"{how}, but the state has changed: {changed}", True
    return how, False


def run_child(world, todo, said):
    """Make calls, up to the first that may have changed the world; say when each begins and ends.

    ``todo`` has their numbers before them.
    """
    if not WATCHED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for number, (one, chosen) in todo:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.alarm(SECONDS)
        os.write(said, f"{number}\n".encode())
        how, spoilt = attempt(world, one, chosen)
        os.write(said, json.dumps(how[-3000:]).encode() + b"\n")
        if spoilt:
            break
    os._exit(0)


def run(share, first):
    """Yield (door, arguments, how) of every call; a call that ends its process is told, too.

    The world is made once: each child has a copy that nothing was called on.
    """
    todo = list(enumerate(calls(share, first)))
    world = World(mtpcore.load_model("demo"))
    begin = 0
    while begin < len(todo):
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            run_child(world, todo[begin:], said)
        os.close(said)
        with open(heard) as pipe:
            lines = pipe.read().split("\n")
        status = os.waitpid(child, 0)[1]
        for number, how in zip(lines[::2], lines[1::2], strict=False):
            if how:
                yield *todo[int(number)][1], json.loads(how)
                begin = int(number) + 1
        if os.WIFSIGNALED(status):
            yield *todo[begin][1], signal.Signals(os.WTERMSIG(status)).name
            begin += 1
        elif status:
            raise RuntimeError(f"the harness failed in call {begin}; see above")


def main(share="1", first="0"):
    logging.disable()
    np.seterr(all="ignore")
    endings, refused = Counter(), []
    for one, chosen, how in run(int(share), int(first)):
        ended = how if how in ("done", "refused", "raised as it may") else "wrong"
        endings[ended] += 1
        if not chosen and ended != "done":
            refused.append(one.name)
        if ended == "wrong":
            print(json.dumps({"door": one.name, "given": chosen, "how": how}), flush=True)
    print(json.dumps({"endings": endings, "refused as they are meant": refused}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
