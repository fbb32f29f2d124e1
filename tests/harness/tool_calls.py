"""Generated conversations with tools, as agents have them, each text held against its cold one.

What breaks hybrids elsewhere happens here at once: JSON of which long parts are equal;
conversations that go on, are asked again, or go on in another way from any place; many at a time;
drafts of an MTP head, the prefix cache with its forks and checkpoints, texts that are cancelled.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

import mtpcore
from harness import qwen
from harness.fixtures import checkpoint, model_file
from harness.published import write_checkpoint
from mtpcore import Batch, Context, Generator, Model, Sampling
from mtpcore.conversion import convert
from mtpcore.cross import Draft
from mtpcore.declarations.spec import TreeShape
from mtpcore.decoding import Request, SimulatedAcceptance

__all__ = ["FAMILIES", "Agents", "Counts", "converse", "model_of"]

FAMILIES = ("qwen35", "qwen35moe")
N_CTX, N_MORE = 400, 24
TREE = TreeShape(depth=3, width=3, n_nodes=8)
NAMES = ("get_weather", "search_files", "run_query", "send_mail", "read_page")
KEYS = {"city": "string", "path": "string", "limit": "integer", "exact": "boolean", "ids": "array"}
HOW = ("begin", "go on", "go on", "cut", "cut", "again", "again")
WORDS = ("Paris", "main.py", 'a "quoted" word', "C:\\new", "{}", "", "naïve", "[1, 2]")


# Texts


def argument(rng: Random, kind: str) -> Any:
    """Return a value of an argument."""
    if kind == "string":
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 2)))
    if kind == "array":
        return [rng.randint(0, 99) for _ in range(rng.randint(0, 3))]
    return rng.random() < 0.5 if kind == "boolean" else rng.randint(-9, 999)


def arguments(rng: Random) -> dict[str, Any]:
    """Return some arguments by name."""
    return {key: argument(rng, KEYS[key]) for key in rng.sample(sorted(KEYS), rng.randint(1, 3))}


def begin(rng: Random) -> str:
    """Return a system prompt with tools, one of three, and a question."""
    few, tools = Random(rng.randint(0, 2)), []
    for name in few.sample(NAMES, 2):
        kinds = {key: {"type": KEYS[key]} for key in few.sample(sorted(KEYS), 2)}
        tools.append({"name": name, "parameters": kinds})
    return f"<|system|>\n<tools>{json.dumps(tools)}</tools>\n{go_on(rng)}"


def go_on(rng: Random) -> str:
    """Return a next turn: a question, or what a tool returned."""
    if rng.random() < 0.4:
        return f"<|user|>\n{rng.choice(NAMES)} {rng.choice(WORDS)}?\n<tool_call>\n"
    found = {"name": rng.choice(NAMES), "content": arguments(rng)}
    indent = rng.choice((None, 1))
    return f"<tool_response>\n{json.dumps(found, indent=indent)}\n</tool_response>\n<tool_call>\n"


def settings(rng: Random) -> Sampling:
    """Return settings of the sampler, every other time greedy ones."""
    penalty, seed = rng.choice((1.0, 1.0, 1.2)), rng.randrange(2**32)
    if rng.random() < 0.5:
        return Sampling(temperature=0.0, repetition_penalty=penalty)
    return Sampling(
        temperature=rng.choice((0.7, 1.0, 1.5)),
        top_k=rng.choice((0, 20)),
        top_p=rng.choice((1.0, 0.9)),
        repetition_penalty=penalty,
        seed=seed,
        stream=rng.randint(0, 3),
    )


# Models


@cache
def model_of(family: str) -> Model:
    """Return the model of a family: the reference model with experts, or a dense random one."""
    if family == "qwen35moe":
        return mtpcore.load_model(model_file("qwen35moe-17"))
    return mtpcore.load_model(_dense_file())


def _dense_file() -> Path:
    """Write a hybrid with random weights and the tokenizer of the other family."""
    folder = model_file("qwen35moe-17").parent / "tool-calls"
    path = folder / "qwen35.gguf"
    if path.exists():
        return path
    tokenizer = json.loads((checkpoint("qwen35moe-17") / "tokenizer.json").read_text("utf-8"))
    n_vocab = model_of("qwen35moe").hparams.n_vocab
    s = qwen.SHAPES["irregular layers, tied"]._replace(tied=False)
    made, rng = qwen.weights(s), np.random.default_rng(5)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        made[name] = rng.normal(0, 0.3, (n_vocab, qwen.WIDTH)).astype(np.float32)
    config = qwen.configuration(s)
    sizes = {"vocab_size": n_vocab, "max_position_embeddings": N_CTX}
    config["text_config"].update(sizes)
    write_checkpoint(folder / "hf", config, qwen.published(s, made), tokenizer)
    convert(folder / "hf", path, outtype="f16", mtp_type="f16")
    return path


# Conversations


class KnownTexts(SimulatedAcceptance):
    """Lets drafts of many texts be accepted: heads with random weights hit none."""

    def __init__(self, seed: int) -> None:
        super().__init__((0.7, 0.5, 0.35, 0.25), seed=seed)
        self.known: list[np.ndarray] = []

    def correct(self, history: np.ndarray, draft: Draft) -> Draft:
        """Correct a draft of the newest text that begins like this."""
        n = len(history)
        found = (text for text in reversed(self.known) if np.array_equal(text[:n], history))
        self.text = next(found, self.text)
        return super().correct(history, draft)


class Counts(msgspec.Struct):
    """What happened, so that a test can say that it did."""

    requests: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    forks: int = 0
    cancelled: int = 0
    digests: int = 0

    def add(self, other: Counts) -> None:
        """Count what another counted, too."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Agents:
    """Conversations on one Cross, which share what they can. A seed draws everything."""

    def __init__(self, family: str, seed: int) -> None:
        self.model, self.rng = model_of(family), Random(f"{family} {seed}")
        choose = self.rng.choice
        self.n_seq = choose((1, 2, 4, 6))
        self.options = {"kv_dtype": choose(("f16", "f32", "q8_0")), "threads": 1}
        llm = self._context(n_seq_max=self.n_seq, n_batch=choose((16, 64, 512)))
        self.cross = mtpcore.link(llm, tree=choose((None, None, TREE)))
        self.generator = Generator(
            self.cross,
            draft_sampler=choose(("coupled", "argmax")),
            prefix_cache=choose(("all", "all", 1_500_000)),
        )
        self.known = KnownTexts(seed)
        if family == "qwen35":
            self.known.install(self.cross)
        self.prompts: list[list[int]] = []
        self.texts: list[list[int]] = []
        self.counts = Counts()
        self._count_forks()

    def _context(self, **sizes: int) -> Context:
        return Context(self.model, N_CTX, **self.options, **sizes)

    def _count_forks(self) -> None:
        speculation = self.cross.speculation
        fork = speculation.fork

        def counted(*arguments: Any) -> None:
            fork(*arguments)
            self.counts.forks += 1

        speculation.fork = counted

    def _prompt(self) -> list[int]:
        """Return the prompt of a conversation that begins, goes on, or is asked again."""
        rng, encode = self.rng, self.model.tokenizer.encode
        how = rng.choice(HOW) if self.texts else "begin"
        if how == "again":
            return rng.choice(self.prompts[-4:])
        if how != "begin":
            text = rng.choice(self.texts[-8:])
            if how == "cut":
                text = text[: rng.randint(1, len(text))]
            prompt = [*text, *encode(go_on(rng))]
            if len(prompt) + N_MORE <= N_CTX:
                return prompt
        return encode(begin(rng))[: N_CTX - N_MORE]

    def converse(self, n_requests: int) -> None:
        """Run so many requests at once, some more that branch off them, and compare all of it.

        Some are cancelled.
        """
        rng = self.rng
        made = [self._ask(self._prompt()) for _ in range(n_requests)]
        while self.generator.active:
            self.generator.step()
            running = [request for request, _ in made if request.seq is not None]
            if running and len(made) < 2 * n_requests and rng.random() < 0.1:
                text = [*(branched := rng.choice(running)).prompt, *branched.tokens]
                if len(text) + N_MORE < N_CTX:
                    made.append(self._ask([*text, rng.randrange(self.model.hparams.n_vocab)]))
            if rng.random() < 0.02:
                self.generator.cancel(rng.choice(made)[0])
        for request, text in made:
            is_cancelled = request.finish_reason == "cancelled"
            wanted = text[: len(request.tokens)] if is_cancelled else text
            assert request.tokens == wanted, f"{request.prompt} goes on otherwise"
            self.texts.append([*request.prompt, *request.tokens])
            self.counts.tokens += len(request.tokens)
            self.counts.cancelled += is_cancelled
        self._compare_digests()
        self.counts.requests += len(made)

    def _ask(self, prompt: list[int]) -> tuple[Request, list[int]]:
        """Return a request, and its cold text."""
        sampling, n = settings(self.rng), self.rng.randint(1, N_MORE)
        text = self._cold(prompt, sampling, n)
        self.prompts.append(prompt)
        self.known.known.append(np.array([*prompt, *text]))
        request = self.generator.add(
            prompt, sampling=sampling, max_tokens=n, draft=self.rng.randint(0, 4), ignore_eos=True
        )
        return request, text

    def _cold(self, prompt: list[int], sampling: Sampling, n: int) -> list[int]:
        """Return the text of a context that sees nothing else, without drafts."""
        generator = Generator(self._context(), sampling=sampling)
        return list(generator.generate(prompt, max_tokens=n, ignore_eos=True))

    def _compare_digests(self) -> None:
        for seq in range(self.n_seq):
            if tokens := self.cross.tokens(seq):
                fresh = mtpcore.link(self._context())
                fresh.llm.process(Batch.of(tokens))
                assert self.cross.digest(seq) == fresh.digest(0), f"sequence {seq}"
                self.counts.digests += 1

    def finish(self) -> Counts:
        """Return the counts."""
        stats, counts = self.generator.stats, self.counts
        counts.drafted, counts.accepted = stats.drafted, stats.accepted
        counts.prompt_tokens, counts.cached_tokens = stats.prompt_tokens, stats.cached_tokens
        return counts


def converse(family: str, n_requests: int, first_seed: int = 0) -> Counts:
    """Run so many requests or a few more; an error says which seed it was, of a few dozen each."""
    counts, seed = Counts(), first_seed
    while counts.requests < n_requests:
        agents = Agents(family, seed)
        n = min(48, n_requests - counts.requests)
        try:
            while agents.counts.requests < n:
                left = n - agents.counts.requests
                agents.converse(min(left, agents.rng.randint(1, 8)))
        except Exception as error:
            raise AssertionError(f"{family}, seed {seed}: {error!r}") from error
        counts.add(agents.finish())
        seed += 1
    return counts
