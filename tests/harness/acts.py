"""Every act of a context, a Cross and a generator, ready to be called."""

import numpy as np

from mtpcore import Batch, Context, Cross, Generator, Link, Sampling, Tap, link, load_model

SAMPLING = Sampling(temperature=1.0, seed=3)
PROMPT = [5, 6, 7]
NOT_ACTS = {
    Context: {"length", "next_position", "check_seq", "join"},
    Cross: {"tokens", "transaction", "settle"},
    Generator: {"request", "generate"},  # the latter is made of queue, step and cancel
}
"""Public methods that only look, that are made of acts, or that are parts of one under way."""


class Room:
    """A Cross with a pending token in sequence 1, and a generator that is in the middle of a text.

    Sequence 0 is the generator's, 2 and 3 are empty.
    """

    def __init__(self, drafter="auto", **settings):
        context = Context(load_model("demo"), 128, n_seq_max=4, threads=1)
        self.cross = link(context, drafter)
        self.llm, self.head = self.cross.llm, self.cross.contexts.get("draft", context)
        self.cross.llm.process(Batch.of(PROMPT, seq=1))
        self.cross.pending(1, SAMPLING)
        self.saved = self.cross.save(1)
        self.generator = Generator(self.cross, draft=2, sampling=SAMPLING, **settings)
        self.request = self.generator.add([9, 8, 7], max_tokens=40, ignore_eos=True)
        self.generator.step()
        self.generator.step()

    def state(self):
        """Return all that acts change, read without making one."""
        contexts = [
            (
                one.taps,
                [*one.runner.lengths],
                {**one.runner.sequences.undecided},
                [*map(one.runner.memory.digest, range(4))],
            )
            for one in self.cross.contexts.values()
        ]
        sequences = [
            (one.history[: one.n + 1].tolist(), one.n, one.n_known, one.pending, one.stream)
            for one in self.cross.speculation.states
        ]
        inboxes = [[box.length(seq) for seq in range(4)] for box in self.inboxes()]
        links, active = [*self.cross.links], len(self.generator._requests)
        return contexts, sequences, inboxes, links, active, [*self.request.tokens]

    def inboxes(self):
        return self.cross.links.inboxes("draft").values()


def look(sequences):
    digests = [*map(sequences.memory.digest, range(4))]
    return [*sequences.lengths], {**sequences.undecided}, digests


def new_request(generator):
    return generator.request([1, 2], max_tokens=4)


CALLS = {
    Context.process: lambda room: room.llm.process(Batch.of([5], seq=1, pos=3)),
    Context.adapt: lambda room: room.llm.adapt(2, []),
    Context.explore: lambda room: room.llm.explore(Batch.of([5], seq=1, pos=3)),
    Context.add_taps: lambda room: room.llm.add_taps([Tap.parse("residual")]),
    Context.keep: lambda room: room.llm.keep(1, []),
    Context.rewind: lambda room: room.llm.rewind(1, 1),
    Context.remove: lambda room: room.llm.remove(1),
    Context.fork: lambda room: room.llm.fork(1, 2),
    Context.prepare: lambda room: room.llm.prepare(),
    Context.digest: lambda room: room.head.digest(1),
    Context.save: lambda room: room.llm.save(1),
    Context.load: lambda room: room.llm.load(2, b""),
    Context.receive: lambda room: room.llm.receive("rows", 2, np.zeros((1, 64), np.float32)),
    Cross.adapt: lambda room: room.cross.adapt(2, []),
    Cross.save: lambda room: room.cross.save(1),
    Cross.load: lambda room: room.cross.load(2, room.saved),
    Cross.connect: lambda room: room.cross.connect(
        Link(src="llm", tap="residual", dst="draft", slot="hidden")
    ),
    Cross.feed: lambda room: room.cross.feed("llm", "hidden", 3, 0, np.zeros((1, 64), np.float32)),
    Cross.prepare: lambda room: room.cross.prepare(),
    Cross.encode: lambda room: room.cross.encode({2: PROMPT}),
    Cross.frame: lambda room: room.cross.frame([1]),
    Cross.pending: lambda room: room.cross.pending(1, SAMPLING),
    Cross.draft: lambda room: room.cross.draft(1, 2, SAMPLING),
    Cross.verify: lambda room: room.cross.verify({1: [5]}, SAMPLING),
    Cross.accept: lambda room: room.cross.accept(1),
    Cross.rollback: lambda room: room.cross.rollback(1, 1),
    Cross.fork: lambda room: room.cross.fork(1, 2),
    Cross.shift: lambda room: room.cross.shift(1, keep=1, drop=1),
    Cross.remove: lambda room: room.cross.remove(1),
    Cross.digest: lambda room: room.cross.digest(1),
    Generator.add: lambda room: room.generator.add([1, 2]),
    Generator.queue: lambda room: room.generator.queue(new_request(room.generator)),
    Generator.step: lambda room: room.generator.step(),
    Generator.cancel: lambda room: room.generator.cancel(room.request),
}
"""A call of each act in a ``Room``."""


def spell(act):
    """Return an act of ``CALLS`` as errors write it: by the class of the object."""
    return f"{act.__qualname__.replace('RequestQueue', 'Generator')}()"
