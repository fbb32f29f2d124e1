"""Several requests at once in every role, and what holds of them wherever a round is cut off."""

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from harness import seer
from harness.committed import check_pages
from harness.families import FAMILIES, HYBRID
from harness.hashed import FUSED, HashModel
from harness.interrupted import Raiser, finish, recovering
from harness.scripted import SCRIPTS, TREES, Letters, Scripted, cross_of, plain
from mtpcore.cross import Cross
from mtpcore.declarations.spec import Link, TreeShape
from mtpcore.decoding import Generator
from mtpcore.graph import GraphType
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampling

WARM, GREEDY = Sampling(temperature=1.0, seed=8), Sampling.greedy()
PENALISED = Sampling(temperature=0.8, repetition_penalty=1.3, seed=5)
TREE = TreeShape(depth=3, width=2, n_nodes=6)
EACH_STEP = next(one for one in FAMILIES if one.spec.heads.order == "each-step")
FUSING = next(one for one in FAMILIES if one.spec.graphs)


def hashed(*drafters, **settings):
    return cross_of(*(drafters or ("head",)), n_seq_max=2, n_batch=6, **settings)[0]


def lettered():
    """A tokenizer; token 7 ends a text."""
    model = HashModel()
    model.tokenizer = Letters(7)
    return model


def proposing(script):
    texts = [[*prompt, *plain(prompt, sampling, 12)] for prompt, sampling in TEXTS]
    return Scripted(script, texts)


def demo(family, n_ctx=96):
    return family.link(n_ctx, n_seq_max=2, n_batch=8, threads=1)


@cache
def seen(name):
    with TemporaryDirectory() as folder:
        return seer.load(Path(folder), name, 1)


def unconnected():
    """A language model and an encoder that it does not read yet."""
    settings = {"n_seq_max": 3, "n_batch": 8, "threads": 1, "backend": "cpu"}
    return Cross(
        llm=Context(seen("seer"), 40, **settings),
        eye=Context(seen("eye"), 40, graph_type=GraphType.ENCODER, **{**settings, "n_batch": 30}),
        draft=Scripted(SCRIPTS["right for one"]),
    )


def connect(cross):
    """Let the model read what the encoder makes of pictures, one of each sequence."""
    cross.connect(Link(src="eye", tap="hidden", dst="llm", slot="picture", pairing="same-token"))
    for seq in range(3):
        patches = np.random.default_rng(seq).normal(size=(30, seer.WIDTH))
        cross.contexts["eye"].process(Batch(embeddings=patches, seq=seq, outputs="none"))
    return cross


def seeing():
    """A language model that reads what an encoder made of pictures."""
    return connect(unconnected())


TEXTS = (([1, 2, 3, 4, 5, 6, 7, 8], WARM), ([3, 1, 4], GREEDY), ([5, 6], PENALISED))
ALIKE = tuple(([*range(1, 11)] * 7 + last, WARM) for last in ([1], [2, 3], [1, 1]))
ROLES = {
    "head": hashed,
    "tokenizer": lambda: hashed(model=lettered()),
    "rows that are not finite": lambda: hashed(nan=4),
    "fusion": lambda: hashed(model=HashModel(FUSED)),
    "tree": lambda: hashed(tree=TREE),
    "proposer": lambda: hashed(proposing(SCRIPTS["right for three"]), "head"),
    "proposed trees": lambda: hashed(proposing(TREES["tree, right on the second branch"])),
    "heads of their own": lambda: demo(EACH_STEP),
    "fused taps": lambda: demo(FUSING),
    "recurrent layers": lambda: demo(HYBRID),
    "encoder": seeing,
    "auto": hashed,
    "context shift": lambda: demo(FUSING, 14),
    "prefix cache": hashed,
}
"""Ways to make a Cross, by the role that they are there for."""


class Situation:
    """Three requests for two sequences, prompts in chunks, of different settings and ends."""

    def __init__(self, role):
        self.role, self.cross = role, ROLES[role]()
        draft = "auto" if role == "auto" else 3
        most = {"auto": 30, "context shift": 20}.get(role, 7)
        caching = 0 if role == "prefix cache" else None
        self.generator = Generator(self.cross, sampling=WARM, draft=draft, prefix_cache=caching)
        options = {
            "stop": ("bc",) if role == "tokenizer" else (),
            "when_full": "shift" if role == "context shift" else "stop",
        }
        self.requests = [
            self.generator.add(
                prompt,
                sampling=sampling,
                max_tokens=most - i,
                prompt_logprobs=1 if i == 1 else None,
                **options,
            )
            for i, (prompt, sampling) in enumerate(ALIKE if role == "prefix cache" else TEXTS)
        ]

    def look(self):
        """Where all requests stand; how much is drafted by "auto" depends on the time it takes.

        What a request has of another one when it begins is there before its first round.
        """
        return tuple(
            (tuple(r.tokens), r.text, r.finish_reason, max(r.n_prefilled - r.n_cached, 0))
            + tuple(r.prompt_logprobs)
            + (() if self.role == "auto" else (tuple(r.drafted),))
            for r in self.requests
        )

    def counted(self):
        """What was counted, without what was timed."""
        fields = msgspec.structs.asdict(self.generator.stats)
        return {name: n for name, n in fields.items() if not name.endswith(("seconds", "choices"))}

    def check_running(self):
        """Every running request's sequence is as in a Cross that only saw its tokens."""
        for request in self.requests:
            seq = request.seq
            if seq is None:
                continue
            text, tokens = [*request.prompt, *request.tokens], self.cross.tokens(seq)
            keep = min(len(request.prompt), self.cross.llm.n_ctx // 2)
            del text[keep : keep + request.n_dropped]
            n_read = request.n_held - 1 if request.tokens else request.n_prefilled
            assert tokens == text[:n_read]
            fresh = ROLES[self.role]()
            if tokens:
                fresh.llm.process(Batch.of(tokens, seq=seq))
            assert self.cross.digest(seq) == fresh.digest(seq), f"sequence {seq}"
            assert self.cross.pending(seq) == (request.tokens[-1] if request.tokens else None)

    def check_end(self):
        """Nothing is left of anything."""
        cross = self.cross
        assert cross.journal._open is None
        assert cross.owners.describe() == []
        for name, context in cross.contexts.items():
            kept = self.role == "encoder" and name == "eye"
            assert kept or context.runner.lengths == [0] * context.n_seq_max
            assert not context.runner.sequences.undecided
            check_pages(context)
            for group in context.runner.memory.groups if context.runner.memory else ():
                assert kept or group.pages.n_free == len(group.pages.uses)
            recurrent = getattr(context.runner.memory, "recurrent", None)
            assert not (recurrent and recurrent.bytes_of(range(context.n_seq_max)))
            for box in cross.links.inboxes(name).values():
                assert not any(box.length(seq) for seq in range(context.n_seq_max))


@cache
def undisturbed(role, by_instruction):
    """Return what requests look like from round to round, what is counted, and all places."""
    one = Situation(role)
    looks = [one.look()]
    while one.generator.active:
        one.generator.step()
        looks.append(one.look())
    one.check_end()
    raiser, two = Raiser(by_instruction=by_instruction), Situation(role)
    with raiser:
        assert finish(two.generator)
    assert two.look() == looks[-1]
    return looks, one.counted(), list(raiser.seen().values())


def disturb(role, places, *, by_instruction=False, digests=False):
    """Raise at these places, go on after each, and demand what an undisturbed run gives."""
    looks, counted, _ = undisturbed(role, by_instruction)
    one, raiser = Situation(role), Raiser(*places, by_instruction=by_instruction)
    with recovering(raiser):
        for _ in range(len(looks) + len(places) + 50):
            try:
                with raiser:
                    if finish(one.generator, patience=1):
                        break
            except KeyboardInterrupt:
                one.cross.journal.settle()
                if role != "auto":
                    assert one.look() in looks
                if digests:
                    one.check_running()
        else:
            raise AssertionError("requests do not finish")
    assert one.look() == looks[-1]
    assert role == "auto" or one.counted() == counted
    one.check_end()
    return raiser.raised


def draw(seed):
    """Return a case of its own for each number: roles in turn, and their lines from end to end."""
    roles = list(ROLES)
    rng, role = random.Random(seed), roles[seed % len(roles)]
    by_instruction = rng.random() < 0.3
    lines = undisturbed(role, by_instruction)[2]
    line = lines[seed // len(roles) * 61 % len(lines)]
    places = [rng.choice(line)]
    if rng.random() < 0.4:
        places += [rng.randrange(300 if by_instruction else 60) for _ in range(rng.randint(1, 3))]
    return role, places, {"by_instruction": by_instruction, "digests": rng.random() < 0.5}
