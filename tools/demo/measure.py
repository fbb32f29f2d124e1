"""Acceptance of drafts along the model's own greedy text.

Every prompt is continued greedily. One pass over prompt and continuation then gives all drafts
that could start anywhere in it (see `demo.network`); a draft step counts only where all steps
before it were accepted, and there the tokens it was given are those a draft loop gives it.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo.corpus import END_OF_TEXT
from demo.network import Network

N_STEPS = 3


@dataclass
class Acceptance:
    """Counts over all prompts.

    `everywhere` counts, for each step of a draft, drafts that start after every token of the
    text: (accepted, drafted after an accepted prefix). `rounds` plays the draft loop with three
    drafts each round, where the next round starts after the accepted part.
    """

    everywhere: list[list[int]]
    rounds: int
    accepted: list[int]
    n_single: int
    accepted_single: int

    def describe(self) -> str:
        """Write the counts as text."""
        share = [a / max(n, 1) for a, n in self.everywhere]
        n_text = sum(self.accepted) + self.rounds
        return "\n".join(
            [
                "first draft accepted after any token of the text: "
                f"{self.everywhere[0][0]}/{self.everywhere[0][1]} = {share[0]:.3f}",
                f"step 2 after an accepted step 1, step 3 after 2: {share[1]:.3f}, {share[2]:.3f}",
                f"draft loop, 1 draft a round: {self.accepted_single}/{self.n_single}"
                f" = {self.accepted_single / max(self.n_single, 1):.3f}",
                f"draft loop, 3 drafts a round: {self.rounds} rounds, accepted by position "
                + ", ".join(f"{a / max(self.rounds, 1):.3f}" for a in self.accepted)
                + f"; {n_text / max(self.rounds, 1):.2f} tokens a pass",
            ]
        )


@torch.no_grad()
def continue_greedily(network: Network, prompt: list[int], n_tokens: int) -> list[int]:
    """Return prompt and up to `n_tokens` more tokens; stops before an end of text."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n_tokens:
        hidden = network(torch.tensor([tokens])).hidden
        token = int(network.output(hidden[0, -1]).argmax())
        if token == END_OF_TEXT:
            break
        tokens.append(token)
    return tokens


@torch.no_grad()
def measure(
    network: Network, tokenizer: Tokenizer, prompts: list[str], n_tokens: int
) -> tuple[Acceptance, list[str]]:
    """Continue each prompt and count accepted drafts; also return the texts."""
    result = Acceptance([[0, 0] for _ in range(N_STEPS)], 0, [0] * N_STEPS, 0, 0)
    texts = []
    for prompt in prompts:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        tokens = continue_greedily(network, ids, n_tokens)
        texts.append(tokenizer.decode(tokens, skip_special_tokens=False))
        agrees = _compare(network, torch.tensor([tokens]))
        # Drafts start when the token at `start` is the newest and are judged by the next ones.
        starts = range(len(ids), len(tokens) - N_STEPS)
        _count(result, agrees, starts)
    return result, texts


def _compare(network: Network, tokens: Tensor) -> list[list[bool]]:
    """For each step j: whether row p (the pair of token p) drafts the text's token p + 1."""
    reading = network(tokens)
    steps = network.draft(reading.embedding, reading.seen, N_STEPS)
    table = []
    for j, u in enumerate(steps, start=1):
        drafted = network.drafted(u[0])[:-1]
        table.append([False] * j + (drafted == tokens[0, j + 1 :]).tolist())
    return table


def _count(result: Acceptance, agrees: list[list[bool]], starts: range) -> None:
    def accepted(start: int, n_steps: int) -> int:
        n = 0
        while n < n_steps and agrees[n][start + n]:
            n += 1
        return n

    for start in starts:
        n = accepted(start, N_STEPS)
        for j in range(N_STEPS):
            result.everywhere[j][0] += n > j
            result.everywhere[j][1] += n >= j
    start = starts.start
    while start < starts.stop:
        n = accepted(start, N_STEPS)
        result.rounds += 1
        for j in range(n):
            result.accepted[j] += 1
        start += n + 1
    start = starts.start
    while start < starts.stop:
        n = accepted(start, 1)
        result.n_single += 1
        result.accepted_single += n
        start += n + 1
