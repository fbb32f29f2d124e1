"""Every public door of mtpcore: what it takes, and how to call it with some of that replaced."""

import inspect
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mtpcore
import mtpcore.testing
from harness.world import GREEDY, Guesser, Policy
from harness.zoo import Hostile
from mtpcore import Batch, Cross, Generator, Link, Sampling, TreeShape, link
from mtpcore.backends.base import FusedSampling
from mtpcore.backends.select import select_backend
from mtpcore.decoding import SimulatedAcceptance
from mtpcore.discovery.registry import Registry
from mtpcore.plugin import (
    Block,
    Checkpoint,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    ModelSpec,
    Tie,
    hookimpl,
)


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
    "place": lambda w: 2,
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
    "Batch.tokens": lambda w: [1, 2, 3],
    "Batch.seq": lambda w: 0,
    "Tap.parse.text": lambda w: "layer_input:1",
    "GraphType.name": lambda w: "fusion",
    "Output.tap.name": lambda w: "hidden",
    "Output.as_computed.name": lambda w: "hidden",
    "Context.graph_type": lambda w: "llm",
    "Context.taps": lambda w: ("hidden",),
    "Context.keep.seq": lambda w: 1,
    "Context.receive.slot": lambda w: "encoded",
    "Context.adapt.seq": lambda w: 2,
    "Cross.adapt.seq": lambda w: 2,
    "Context.load.seq": lambda w: 2,
    "Context.load.source": lambda w: w.saved_alone,
    "Cross.load.seq": lambda w: 2,
    "Cross.load.source": lambda w: w.saved,
    "Cross.shift.keep": lambda w: 1,
    "Cross.shift.drop": lambda w: 1,
    "Cross.accept.seq": lambda w: 1,
    "Cross.connect.link": lambda w: Link(src="llm", tap="hidden", dst="draft", slot="hidden"),
    "Cross.draft.k": lambda w: 2,
    "Cross.encode.prompts": lambda w: {2: [1, 2, 3]},
    "Model.borrow_from.target": lambda w: w.model,
    "DraftVocabulary.read.path": lambda w: "/dev/null/nothing",
    "DraftVocabulary.write.path": lambda w: "/dev/null/nothing",
    "Lookup.texts": lambda w: [],
    "LookupTexts.tokenizer": lambda w: "0" * 32,
    "LookupTexts.open.path": lambda w: "/dev/null/nothing",
    "LookupTexts.read.path": lambda w: "/dev/null/nothing",
    "LookupTexts.write.path": lambda w: "/dev/null/nothing",
    "messages": lambda w: [{"role": "user", "content": "hi"}],
    "generator": lambda w: w.generator,
    "codes": lambda w: [[1, 2]],
    "Video.nt": lambda w: 1,
    "Video.nx": lambda w: 1,
    "Video.ny": lambda w: 1,
    "Image.nx": lambda w: 1,
    "Image.ny": lambda w: 1,
    "start": lambda w: 3,
    "nt": lambda w: 2,
    "nx": lambda w: 2,
    "ny": lambda w: 2,
    "seqs": lambda w: [0],
    "Model.n_tokens.graph_type": lambda w: "llm",
    "begin": lambda w: 0,
    "end": lambda w: 1,
    "LM.n_ctx": lambda w: 48,
    "Model.is_long.n_ctx": lambda w: 48,
    "Model.program.n_ctx": lambda w: 48,
    "LM.n_seq_max": lambda w: 1,
    "LM.generate.max_tokens": lambda w: 2,
    "LM.chat.max_tokens": lambda w: 2,
    "Tokenizer.encode_infill.prefix": lambda w: "def f(",
    "Tokenizer.encode_infill.suffix": lambda w: "): pass",
    "LM.run_between_rounds.function": lambda w: lambda: None,
    "load_model.path": lambda w: "demo",
    "load_adapter.path": lambda w: "/dev/null/nothing",
    "adapters": lambda w: {},
    "PureProcessor.processor": lambda w: lambda tokens, logits: None,
    "Grammar.source": lambda w: 'start: "a"',
    "Grammar.parts": lambda w: {},
    "testing.check_drafts.n_tokens": lambda w: 2,
    "testing.check_texts.texts": lambda w: mtpcore.testing.Texts(n_tokens=2),
    "testing.check_rows.batching": lambda w: mtpcore.testing.Batching(),
}
"""Arguments that a door takes: by ``Class.method.parameter``, or by the parameter alone; others are
left out."""

LEFT_OUT = {
    **dict.fromkeys(
        (*("Context.join", "Cross.transaction", "Cross.settle"),),
        "a part of an act that is under way, which has read the arguments",
    ),
    "Link": "data; Cross.connect reads it",
    "Tap": "data; whoever takes taps reads it",
    "TreeShape": "data; link reads it",
    "Adapter": "made by load_adapter",
    "AsyncStream": "made by LM.astream",
    "Completion": "made by LM.generate",
    "ToolCall": "made by LM.chat",
    "CompletionStats": "made by LM.generate",
    "Piece": "made by a stream",
    "Stream": "made by LM.stream",
    "LM.close": "no argument",
    "Model": "made by load_model",
    "Model.close": "no argument",
    "Model.plan_alone": "a lock around what a graph runner makes",
    "Output": "made by process",
    "Proposer": "what others implement",
    "Request": "made by Generator.add",
    "FrameRequest": "made by Frames.add",
    "Frames": "takes a model that writes codes; tests/decoding/test_frames.py calls it",
    "Stats": "made by a generator",
    "Verdict": "made by verify",
    "Verdicts": "made by verify",
    "testing.Runner": "arrays as plans take them, for tests of single storeys",
    "testing.Weights": "arrays as plans take them, for tests of single storeys",
    "testing.Batching": "data; check_rows reads it",
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
    "LM": lambda w: w.lm,
    "Model": lambda w: w.model,
    "Output": lambda w: w.output,
    "Prompt": lambda w: mtpcore.Prompt([1, 2]),
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
    cross = link(
        world.context(), tree=TreeShape(paths=paths, depth=depth, width=width, n_nodes=n_nodes)
    )
    cross.llm.process(Batch.of([1, 2]))
    cross.draft(0, 3, GREEDY)


def connect(world, src="llm", tap="residual", dst="draft", slot="hidden", pairing="next-token"):
    world.cross.connect(Link(src=src, tap=tap, dst=dst, slot=slot, pairing=pairing))


def tap(world, point="hidden", layer=None):
    world.alone.add_taps([mtpcore.Tap(point, layer)])


def choose(world, samplers=(None,), indices=(0,), token_ids=None, fused_sampling=None):
    made = FusedSampling(samplers=samplers, indices=indices, token_ids=token_ids)
    world.alone.process(Batch.of([4], seq=2), made if fused_sampling is None else fused_sampling)


def batch(
    world, tokens=(4,), seq=2, pos=0, outputs="last", parent=None, slots=None, embeddings=None,
    codes=None, place=None, until=None,
):  # fmt: skip
    made = Batch(
        tokens, seq=seq, pos=pos, outputs=outputs, parent=parent, slots=slots,
        embeddings=embeddings, codes=codes, place=place, until=until,
    )  # fmt: skip
    world.alone.process(made)


def prompt(world, part=(1, 2), other=(3,)):
    world.alone.process(mtpcore.Prompt(part, other).batch(seq=2))


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


def simulate(world, rates=(0.5,), seed=0, text=(1, 2)):
    SimulatedAcceptance(rates, seed=seed).expect(text)


def simulate_length(world, length=1.5, n=2, longest=0):
    SimulatedAcceptance.of_length(length, n, longest=longest)


def backend(world, name="cpu"):
    select_backend(name, mtpcore.discovery.registry.registry().backends)


def plugin(world, module=None):
    Registry.of(module)


def select_plugins(world, selected=""):
    mtpcore.discovery.registry.load_registry(selected)


def error(world, what="x", where="", wanted=None, got=None, fix=""):
    str(mtpcore.BatchError(what, where=where, wanted=wanted, got=got, fix=fix))


def declare(kind, name, **more):
    """Return a door to a field of a drafter's declaration, or of a trunk's."""

    def call(world, value=...):
        given = {} if value is ... else {name: value}
        sound = {"name": "toy", "fit": Fit(architectures=frozenset({"toy"}), tensors=("x",))}
        if kind is ModelSpec:
            sound |= {"hparams": dict, "build": dict}
        spec = kind(**(sound | {"build": dict} | more | given))
        hook = "mtpcore_models" if kind is ModelSpec else "mtpcore_drafters"
        Registry.of(type("Plugin", (), {hook: staticmethod(hookimpl(_named(hook, spec)))})())

    return Door(f"{kind.__name__}.{name}", call, ("value",), {})


def _named(name, spec):
    def hook():
        return [spec]

    hook.__name__ = name
    return hook


INSIDE = (
    ("fit", Fit),
    ("feeds", Feed),
    ("ties", Tie),
    ("heads", Heads),
    ("tree", TreeShape),
    ("block", Block),
    ("checkpoint", Checkpoint),
)
REQUIRED = {
    Feed: {"slot": "x"},
    Tie: {"tensor": "x", "candidates": ("x",)},
    Fit: {"tensors": ("x",)},
    TreeShape: {"depth": 2, "width": 2, "n_nodes": 4},
    Block: {"size": 4, "mask": 1},
    Checkpoint: {"heads": "x", "architectures": frozenset({"Toy"})},
}


def declare_inside(home, name):
    """Return a door to a field of a struct that stands in a drafter's declaration."""
    kind = dict(INSIDE)[home]

    def call(world, value=...):
        given = {} if value is ... else {name: value}
        made = kind(**(REQUIRED.get(kind, {}) | given))
        more = {"shape": home} if home in ("block", "tree") else {}
        inside = (made,) if home in ("feeds", "ties") else made
        declare(DrafterSpec, home, **more).call(world, inside)

    return Door(f"{kind.__name__}.{name}", call, ("value",), {})


COMPOSED = [
    *map(composed, (grow, connect, tap, choose, batch, prompt, bias, settle, length, cross_of)),
    *map(composed, (simulate, simulate_length, backend, plugin, select_plugins, error)),
    composed(guess, (Hostile,)),
    *(declare_inside(home, one) for home, kind in INSIDE for one in kind.__struct_fields__),
    *(declare(kind, one) for kind in (ModelSpec, DrafterSpec) for one in kind.__struct_fields__),
]
