"""One of each thing of mtpcore that has doors, in the midst of its work."""

import json

import mtpcore
import mtpcore.testing
from mtpcore import Batch, Context, DraftTree, Generator, Sampling, link
from mtpcore.decoding import LengthPolicy

GREEDY = Sampling.greedy()


class Template:
    """A chat template that needs no process; rendering has doors of its own."""

    source = ""
    reads_tools = True

    def render(self, messages, tools=None, **more):
        try:
            return json.dumps(messages)
        except Exception as error:
            raise mtpcore.MtpcoreError("the template failed") from error


class Policy(LengthPolicy):
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
        self.saved_alone = self.alone.save(0)
        self.spare = self.context()
        self.cross = link(self.context())
        for seq in (0, 1):
            self.cross.llm.process(Batch.of([1, 2, 3, 4 + seq], seq=seq))
            self.cross.pending(seq, GREEDY)
        self.saved = self.cross.save(0)
        self.cross.verify({1: [7, 8]}, GREEDY)
        self.generator = Generator(link(self.context()), sampling=GREEDY, draft=2)
        self.request = self.generator.add([1, 2, 3], max_tokens=20)
        self.generator.step()
        self.generator.step()
        self.tree = DraftTree([7, 9, 8], [-1, -1, 0])
        self.vocabulary = mtpcore.DraftVocabulary([1, 2, 3, 4], "")
        model.chat_template = Template()
        self.lm = mtpcore.LM(model, n_ctx=48, n_seq_max=2, draft=2, threads=1)
        self.stats = mtpcore.Stats()
        self.subject = mtpcore.testing.Subject("demo", "demo")

    def context(self, **options):
        return Context(self.model, 48, n_seq_max=3, n_batch=32, threads=1, **options)

    def state(self):
        """Return everything that a call that fails may not change."""
        found = [list(self.alone.runner.lengths), dict(self.alone.runner.sequences.undecided)]
        found += [list(self.alone.taps)]
        found += [list(self.spare.runner.lengths), list(self.spare.taps), self.spare.owner is None]
        found += [self.alone.digest(seq) for seq in (0, 2)]
        for cross in (self.cross, self.generator.cross):
            found += [cross.digest(seq) for seq in range(3)]
            found += [cross.tokens(seq) for seq in range(3)]
            found += [cross.pending(seq) for seq in range(3)]
            found += [cross.speculation.states[seq].undecided for seq in range(3)]
            found += [
                cross.llm.runner.lengths[:],
                dict(cross.llm.runner.sequences.undecided),
                len(list(cross.links)),
            ]
        one = self.request
        found += [list(one.tokens), one.text, one.seq, one.n_prefilled, one.finish_reason]
        found += [len(self.generator._requests)]
        found += [self.lm.n_running, repr(self.lm)]
        found += [self.tree.tokens.tolist(), self.vocabulary.tokens.tolist(), str(self.stats)]
        return found
