"""What tests of families with a reference model share: its numbers, texts and tables of drafts."""

from typing import NamedTuple

import numpy as np

from harness.fixtures import counts, model_file, references
from harness.scripted import run
from mtpcore import Batch, Context, Generator, Sampling, link, load_model

NEAR_TIE = 1e-3
"""Below this distance of the two best logits another rounding may choose differently."""
GREEDY = Sampling.greedy()


class Published(NamedTuple):
    """A reference model: its folder in ``tests/data``, and the tap that its references show."""

    name: str
    tap: str = "hidden"

    def model(self):
        return load_model(model_file(self.name))

    def context(self, model, backend="cpu", **settings):
        return Context(
            model, 160, **{"kv_dtype": "f32", "backend": backend, "threads": 2, **settings}
        )

    def check_numbers(self, model, backend, tolerance=2e-4):
        """Compare logits and tapped rows of the prompts that have them."""
        refs = references(self.name)
        for i in range(len(refs["logits"])):
            llm = self.context(model, backend, taps=[self.tap])
            out = llm.process(Batch.of(refs["prompts"][i], outputs="all"))
            assert np.abs(out.logits - refs["logits"][i]).max() < tolerance
            assert np.abs(out.tap(self.tap) - refs[self.tap][i]).max() < tolerance

    def check_texts(self, model, backend, draft, n=6, drafter="auto"):
        """Compare greedy texts, which may part at a near tie; return the generator's statistics."""
        refs = references(self.name)
        llm = self.context(model, backend, n_seq_max=n)
        generator = Generator(link(llm, drafter), sampling=GREEDY, draft=draft)
        length = refs["greedy"].shape[1]
        made = [
            generator.add(p.tolist(), max_tokens=length, ignore_eos=True)
            for p in refs["prompts"][:n]
        ]
        run(generator)
        for i, request in enumerate(made):
            differs = np.flatnonzero(np.array(request.tokens) != refs["greedy"][i])
            assert not len(differs) or refs["greedy_margin"][i, differs[0]] < NEAR_TIE
        return generator.stats

    def rate(self, k):
        """Return how many of the drafts are accepted in the greedy loop."""
        found = counts(self.name)[f"k={k}"]
        return found["accepted"] / found["drafted"]

    def draft_table(self, model, backend="cpu", n=6, drafter="auto"):
        """Rebuild the table of drafts, int32[n, length - 1, k], through a Cross."""
        refs = references(self.name)
        length, k = refs["greedy"].shape[1], refs["drafts"].shape[2]
        llm = self.context(model, backend, n_seq_max=n)
        cross = link(llm, drafter)
        for seq in range(n):
            llm.process(Batch.of(refs["prompts"][seq], seq=seq))
        table = np.full((n, length - 1, k), -1, np.int32)
        for i in range(length - 1):
            for seq, ids in cross.draft(dict.fromkeys(range(n), k), sampling=GREEDY).items():
                table[seq, i, : len(ids)] = ids
            cross.verify({seq: [] for seq in range(n)}, GREEDY)
            for seq in range(n):
                cross.accept(seq)
        for seq in range(n):
            text = [*refs["prompts"][seq], *refs["greedy"][seq]]
            assert cross.tokens(seq) == text[:-1], "a near tie fell the other way: allow for it"
        return table

    def check_drafts(self, table):
        """Compare a table; a draft may differ at a near tie, or after one in its own run."""
        refs = references(self.name)
        n = len(table)
        near = np.logical_or.accumulate(refs["draft_margin"][:n] < NEAR_TIE, axis=2)
        assert not ((table != refs["drafts"][:n]) & ~near).any()
        assert near.mean() < 0.05

    def count(self, table, k):
        """Return steps and drafts accepted by position, of the greedy loop over a table."""
        refs = references(self.name)
        per_position, steps = np.zeros(k, int), 0
        for drafts, greedy in zip(table, refs["greedy"], strict=True):
            i = 0
            while i < len(greedy) - 1 - k:
                accepted = 0
                while accepted < k and drafts[i, accepted] == greedy[i + 1 + accepted]:
                    per_position[accepted] += 1
                    accepted += 1
                steps += 1
                i += accepted + 1
        return steps, per_position.tolist()
