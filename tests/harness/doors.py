"""Call every public door with values that nobody should give, in a process with little memory.

``python -m harness.doors SHARE FIRST`` prints a JSON line for each call that went wrong, and one
that counts all. Each parameter of each door gets the values of the zoo, one of ``SHARE`` of them
(1: all); with ``FIRST`` another part. A call may do as it is told, or raise:

- ``MtpcoreError``, always: a caller can tell what went wrong from what is broken in mtpcore;
- ``Hostile``, where the parameter is a function that the caller wants called: what it raises is the
  caller's own;
- ``AssertionError``, where the door is a check of ``mtpcore.testing``.

``TypeError`` is Python's own for parameters that are missing or unknown, and no call here has
these. After an error everything is as it was: digests, lengths, pending tokens, requests.
"""

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
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mtpcore
import mtpcore.plugin
import mtpcore.testing
from harness.zoo import ZOO, Hostile
from mtpcore import Batch, Context, Cross, DraftTree, Generator, Link, Sampling, Tree, link
from mtpcore.backends.base import Choices
from mtpcore.backends.select import select_backend
from mtpcore.decoding import SyntheticAcceptance
from mtpcore.plugin import DrafterSpec, Feed, Fit, ModelSpec, hookimpl
from mtpcore.registry import Registry

ADDRESS_SPACE = 3 << 30
SECONDS = 10
GREEDY = Sampling.greedy()
WATCHED = "libasan" in os.environ.get("LD_PRELOAD", "")


class Policy:
    """Chooses lengths; its answers are given."""

    def __init__(self, chosen, observed=()):
        self.chosen, self.observed = chosen, observed

    def choose(self, limits, fixed):
        return self.chosen

    def observe(self, done):
        return self.observed

    def forget(self, seq):
        pass


class Guesser(mtpcore.Proposer):
    """Answers what it was given."""

    def __init__(self, answer):
        self.answer = answer

    def propose(self, seq, tokens, k):
        return self.answer


class World:
    """One of each thing that has doors, in the midst of its work."""

    def __init__(self, model):
        self.model = model
        self.alone = self.context(taps=("hidden",))
        self.output = self.alone.process(Batch.of([1, 2, 3], outputs="all"))
        tree = Batch([4, 5, 6], seq=1, pos=[0, 1, 1], parent=[-1, 0, 0])
        self.alone.process(tree)
        self.spare = self.context()
        self.cross = link(self.context())
        for seq in (0, 1):
            self.cross.llm.process(Batch.of([1, 2, 3, 4 + seq], seq=seq))
            self.cross.pending(seq, GREEDY)
        self.cross.verify({1: [7, 8]}, GREEDY)
        self.generator = Generator(link(self.context()), sampling=GREEDY, draft=2)
        self.request = self.generator.add([1, 2, 3], max_tokens=20)
        self.generator.step()
        self.generator.step()
        self.tree = DraftTree([7, 9, 8], [-1, -1, 0])
        self.vocabulary = mtpcore.DraftVocabulary([1, 2, 3, 4], "")
        self.stats = mtpcore.Stats()
        self.subject = mtpcore.testing.Subject("demo", "demo")

    def context(self, **options):
        return Context(self.model, 48, n_seq_max=3, n_batch=32, threads=1, **options)

    def state(self):
        """Return everything that a call that fails may not change."""
        found = [list(self.alone.lengths), dict(self.alone.undecided), list(self.alone.taps)]
        found += [list(self.spare.lengths), list(self.spare.taps), self.spare.owner is None]
        found += [self.alone.digest(seq) for seq in (0, 2)]
        for cross in (self.cross, self.generator.cross):
            found += [cross.digest(seq) for seq in range(3)]
            found += [cross.tokens(seq) for seq in range(3)]
            found += [cross.pending(seq) for seq in range(3)]
            found += [cross._states[seq].undecided for seq in range(3)]
            found += [cross.llm.lengths[:], dict(cross.llm.undecided), len(list(cross.links))]
        one = self.request
        found += [list(one.tokens), one.text, one.seq, one.n_prefilled, one.finish_reason]
        found += [len(self.generator._waiting), sorted(self.generator._running)]
        found += [self.tree.tokens.tolist(), self.vocabulary.tokens.tolist(), str(self.stats)]
        return found


class Door(NamedTuple):
    """``call(world, **arguments)``; ``sound(world)`` gives arguments that it takes."""

    name: str
    call: Any
    names: tuple[str, ...]
    sound: Any
    allows: tuple[type[BaseException], ...] = ()


SOUND = {
    "model": lambda w: w.model,
    "llm": lambda w: w.spare,
    "batch": lambda w: Batch.of([4], seq=2),
    "seq": lambda w: 0,
    "new": lambda w: 2,
    "length": lambda w: 2,
    "pos": lambda w: 2,
    "path": lambda w: [0, 2],
    "taps": lambda w: ["hidden"],
    "tap": lambda w: "hidden",
    "role": lambda w: "llm",
    "rows": lambda w: np.zeros((1, w.model.hparams.width), np.float32),
    "drafts": lambda w: {0: [7, 8]},
    "tokens": lambda w: [1, 2, 3],
    "parent": lambda w: [-1, -1, 0],
    "tokenizer": lambda w: "",
    "texts": lambda w: "a text",
    "text": lambda w: "def f(x):",
    "token": lambda w: 5,
    "node": lambda w: 0,
    "kept": lambda w: np.ones(3, bool),
    "n": lambda w: 2,
    "source": lambda w: w.spare,
    "prompt": lambda w: [1, 2, 3],
    "request": lambda w: w.request,
    "name": lambda w: "llm",
    "output": lambda w: 0,
    "k": lambda w: 2,
    "backend": lambda w: "cpu",
    "subject": lambda w: w.subject,
    "factors": lambda w: {"a": (1, 2), "b": (3, 4)},
    "rates": lambda w: (0.5, 0.25),
    "Batch.seq": lambda w: 0,
    "Tap.parse.text": lambda w: "layer_input:1",
    "GraphType.register.name": lambda w: "fusion",
    "Output.tap.name": lambda w: "hidden",
    "Context.graph_type": lambda w: "llm",
    "Context.taps": lambda w: ("hidden",),
    "Context.set_taps.taps": lambda w: (),
    "Context.keep.seq": lambda w: 1,
    "Context.follow.seq": lambda w: 1,
    "Context.draft.k": lambda w: [2],
    "Cross.accept.seq": lambda w: 1,
    "Cross.connect.link": lambda w: Link(src="llm", tap="hidden", dst="draft", slot="hidden"),
    "Cross.draft.k": lambda w: 2,
    "Model.borrow_from.target": lambda w: w.model,
    "DraftVocabulary.read.path": lambda w: "/dev/null/nothing",
    "DraftVocabulary.write.path": lambda w: "/dev/null/nothing",
    "load_model.path": lambda w: "demo",
    "testing.check_texts.texts": lambda w: mtpcore.testing.Texts(n_tokens=2),
    "testing.check_rows.company": lambda w: mtpcore.testing.Company(),
}
"""Arguments that a door takes: by ``Class.method.parameter``, or by the parameter alone; others are
left out."""

LEFT_OUT = {
    "Context.undoable": "a guard for those who process: cross and context",
    "Context.draft": "takes what a backend takes; drafters call it with what they made",
    "Link": "data; Cross.connect reads it",
    "Tap": "data; whoever takes taps reads it",
    "Tree": "data; link reads it",
    "Model": "made by load_model",
    "Model.close": "no argument",
    "Output": "made by process",
    "Proposer": "what others implement",
    "Request": "made by Generator.add",
    "Stats": "made by a generator",
    "Verdict": "made by verify",
    "testing.Runner": "arrays as plans take them, for tests of single storeys",
    "testing.Weights": "arrays as plans take them, for tests of single storeys",
    "testing.Company": "data; check_rows reads it",
    "testing.Subject": "data; its methods read it",
    "testing.Texts": "data; check_texts reads it",
    "testing.check_layouts": "runs for seconds; no argument but files and a subject",
    "testing.check_ties": "runs for seconds; no argument but files and a subject",
    "testing.check_broken_rows": "runs for seconds; as check_texts",
}
"""Doors that are not called, and why; of a class, its methods too where they share the reason."""


def parameters(function):
    """Return a function's parameters, without ``self`` and those that collect others."""
    found = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [one for one in found if one.kind not in kinds and one.name not in ("self", "cls")]


def door(name, call, function, allows=()):
    """Return a door with what it takes soundly; parameters without a sound value stay out."""
    found = parameters(function)
    sound = {}
    for one in found:
        maker = SOUND.get(f"{name}.{one.name}")
        if maker is None and one.default is inspect.Parameter.empty:
            maker = SOUND.get(one.name)
            assert maker is not None, f"no sound value for {name}.{one.name}"
        if maker is not None:
            sound[one.name] = maker
    return Door(name, call, tuple(one.name for one in found), sound, allows)


def methods(name, kind, on):
    """Yield the doors of a class's public methods, called on ``on(world)``."""
    for method, function in inspect.getmembers(kind, callable):
        of_kind = f"{name}.{method}"
        if method.startswith("_") or of_kind in LEFT_OUT:
            continue

        def call(world, method=method, **arguments):
            found = getattr(on(world), method)(**arguments)
            return list(found) if inspect.isgenerator(found) else found

        if parameters(function):
            yield door(of_kind, call, function)


ON = {
    "Batch": lambda w: Batch,
    "Context": lambda w: w.alone,
    "Cross": lambda w: w.cross,
    "DraftTree": lambda w: w.tree,
    "DraftVocabulary": lambda w: w.vocabulary,
    "Generator": lambda w: w.generator,
    "GraphType": lambda w: mtpcore.GraphType,
    "Model": lambda w: w.model,
    "Output": lambda w: w.output,
    "Sampling": lambda w: Sampling,
    "Tap": lambda w: mtpcore.Tap,
}


def _use(thing, world, **arguments):
    """Call a function or make an object, and look at it."""
    return repr(thing(**arguments))


def walk():
    """Yield every door of mtpcore and its conformance kit."""
    for module, names, prefix in (
        (mtpcore, mtpcore.__all__, ""),
        (mtpcore.testing, mtpcore.testing.__all__, "testing."),
    ):
        for one in names:
            name, thing = prefix + one, getattr(module, one)
            if name not in LEFT_OUT:
                allows = (AssertionError,) if name.startswith("testing.check") else ()
                is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
                if parameters(thing) and not is_error:
                    yield door(name, partial(_use, thing), thing, allows)
            if inspect.isclass(thing) and one in ON:
                yield from methods(name, thing, ON[one])
    yield from methods(
        "Tokenizer", mtpcore.load_model("demo").tokenizer.__class__, lambda w: w.model.tokenizer
    )
    yield from methods("testing.Subject", mtpcore.testing.Subject, lambda w: w.subject)
    yield from COMPOSED


def composed(call, allows=()):
    """Return a door to what is given inside something else: a function of world and parameters."""
    names = tuple(one.name for one in parameters(call) if one.name != "world")
    return Door(call.__name__, call, names, {}, allows)


def grow(world, paths=(), depth=2, width=2, n_nodes=4):
    cross = link(world.context(), tree=Tree(paths=paths, depth=depth, width=width, n_nodes=n_nodes))
    cross.llm.process(Batch.of([1, 2]))
    cross.draft(0, 3, GREEDY)


def connect(world, src="llm", tap="residual", dst="draft", slot="hidden", pairing="next-token"):
    world.cross.connect(Link(src=src, tap=tap, dst=dst, slot=slot, pairing=pairing))


def tap(world, point="hidden", layer=None):
    world.alone.add_taps([mtpcore.Tap(point, layer)])


def choose(world, samplers=(None,), indices=(0,), token_ids=None, choices=None):
    made = Choices(samplers=samplers, indices=indices, token_ids=token_ids)
    world.alone.process(Batch.of([4], seq=2), made if choices is None else choices)


def batch(
    world, tokens=(4,), seq=2, pos=0, outputs="last", parent=None, slots=None, embeddings=None
):
    made = Batch(
        tokens, seq=seq, pos=pos, outputs=outputs, parent=parent, slots=slots, embeddings=embeddings
    )
    world.alone.process(made)


def bias(world, token=3, value=1.0):
    try:
        hash(token)
    except Exception:  # nobody can make a mapping of it
        return
    generator = Generator(world.context(), sampling=Sampling(logit_bias={token: value}, seed=1))
    list(generator.generate([1, 2], max_tokens=2))


def settle(world, temperature=0.8, repetition_penalty=1.0, frequency_penalty=0.0, top_p=1.0):
    made = Sampling(
        temperature=temperature,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        top_p=top_p,
        seed=1,
    )
    generator = Generator(link(world.context()), sampling=made, draft=2)
    list(generator.generate([1, 2, 1], max_tokens=4))


def length(world, chosen=None, observed=()):
    made = Policy({0: 1} if chosen is None else chosen, observed)
    generator = Generator(link(world.context()), draft="auto", lengths=made, sampling=GREEDY)
    list(generator.generate([1, 2], max_tokens=4))


def guess(world, answer=(1,)):
    generator = Generator(link(world.context(), Guesser(answer)), draft=2, sampling=GREEDY)
    list(generator.generate([1, 2], max_tokens=4))


def cross_of(world, llm=None, draft=None):
    Cross(llm=world.spare if llm is None else llm, **({} if draft is None else {"draft": draft}))


def synthetic(world, rates=(0.5,), never=(), seed=0):
    SyntheticAcceptance(rates, never=never, seed=seed)(0, 1)


def synthetic_length(world, length=1.5, n=2, longest=0):
    SyntheticAcceptance.of_length(length, n, longest=longest)


def backend(world, name="cpu"):
    select_backend(name)


def plugin(world, module=None):
    Registry.of(module)


def select_plugins(world, selected=""):
    mtpcore.registry.load_registry(selected)


def error(world, what="x", where="", wanted=None, got=None, fix=""):
    str(mtpcore.BatchError(what, where=where, wanted=wanted, got=got, fix=fix))


def declare(field):
    """Return a door to a field of a drafter's declaration, or of a trunk's."""
    kind, name = field

    def call(world, value=None):
        sound = {"name": "toy", "fit": Fit(architectures=frozenset({"toy"}), tensors=("x",))}
        if kind is ModelSpec:
            sound |= {"hparams": dict, "build": dict}
        spec = kind(**(sound | {"build": dict} | {name: value}))
        hook = "mtpcore_models" if kind is ModelSpec else "mtpcore_drafters"
        Registry.of(type("Plugin", (), {hook: staticmethod(hookimpl(_named(hook, spec)))})())

    return Door(f"{kind.__name__}.{name}", call, ("value",), {})


def _named(name, spec):
    def hook():
        return [spec]

    hook.__name__ = name
    return hook


def declare_feed(
    world, slot="x", taps=("hidden",), src="target", graph="", recycle=None, width=None
):
    feed = Feed(slot=slot, taps=taps, src=src, graph=graph, recycle=recycle, recycle_width=width)
    declare((DrafterSpec, "feeds")).call(world, value=(feed,))


COMPOSED = [
    *map(composed, (grow, connect, tap, choose, batch, bias, settle, length, cross_of)),
    *map(composed, (synthetic, synthetic_length, backend, plugin, select_plugins, error)),
    composed(guess, (Hostile,)),
    composed(declare_feed),
    *(declare((kind, one)) for kind in (ModelSpec, DrafterSpec) for one in kind.__struct_fields__),
]
CALLED = {
    ("Generator", "acceptance"),
    ("Generator", "lengths"),
    ("Cross.verify", "acceptance"),
    ("Context.process", "choices"),
    ("guess", "answer"),
}
"""Parameters of which something is called, or walked through, that may raise what it likes."""


def calls(share, first):
    """Yield (door, {parameter: value's name}): each parameter with its part of the zoo."""
    number = itertools.count(first)
    for one in walk():
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
        one.call(world, **arguments)
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


def run_child(share, first, begin, said):
    """Make calls from number ``begin`` on; say of each that it begins, and how it ended."""
    if not WATCHED:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    model, world = None, None
    for number, (one, chosen) in enumerate(calls(share, first)):
        if number < begin:
            continue
        signal.alarm(SECONDS)  # a hang is a failure
        os.write(said, f"{number}\n".encode())
        if world is None:
            model = mtpcore.load_model("demo")
            world = World(model)
        how, spoilt = attempt(world, one, chosen)
        if spoilt:
            world = None
        os.write(said, json.dumps(how[-3000:]).encode() + b"\n")
    os.write(said, b"end\n")
    os._exit(0)


def run(share, first):
    """Yield (door, arguments, how) of every call; a call that ends its process is told, too."""
    todo = list(calls(share, first))
    begin = 0
    while begin < len(todo):
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            run_child(share, first, begin, said)
        os.close(said)
        with open(heard) as pipe:
            lines = pipe.read().split("\n")
        status = os.waitpid(child, 0)[1]
        for number, how in zip(lines[::2], lines[1::2], strict=False):
            if number not in ("", "end") and how:
                yield *todo[int(number)], json.loads(how)
        numbers = [line for line in lines[::2] if line not in ("", "end")]
        begin = int(numbers[-1]) + 1
        if os.WIFSIGNALED(status):
            yield *todo[begin - 1], signal.Signals(os.WTERMSIG(status)).name


def main(share="1", first="0"):
    logging.disable()
    np.seterr(all="ignore")
    endings = Counter()
    for one, chosen, how in run(int(share), int(first)):
        ended = how if how in ("done", "refused", "raised as it may") else "wrong"
        endings[ended] += 1
        if ended == "wrong":
            print(json.dumps({"door": one.name, "given": chosen, "how": how}), flush=True)
    print(json.dumps({"endings": endings}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
