"""Several drafters: their order for each request, and which of them is found to pay."""

import random

import pytest
from harness.scripted import run

from mtpcore import Batch, Context, Generator, LinkError, Sampling, link, load_model
from mtpcore.decoding import Controller, Expectation, Proposed, Round

PROMPT = "for name in names:\n    print(name)\nfor name in names:\n    "


@pytest.fixture(scope="module")
def cross():
    """Lookup, a head and a draft model."""
    model, small = load_model("demo"), load_model("demo:small")
    names = ["lookup", "glm_nextn", "draft_model"]
    return link(Context(model, 160, n_seq_max=4), names, draft_model=small)


ORDERS = [
    None,
    ["lookup"],
    ["glm_nextn"],
    ["draft_model", "lookup"],
    ["lookup", "draft3"],
    [],
]


@pytest.mark.parametrize("draft", [3, "auto"])
def test_each_request_has_its_order_and_all_the_same_text(cross, draft):
    prompt = cross.llm.model.tokenizer.encode(PROMPT)
    generator = Generator(cross, sampling=Sampling(temperature=0.6, seed=4))
    plain = list(generator.generate(prompt, draft=0, max_tokens=24, ignore_eos=True))
    made = []
    for names in ORDERS:
        counted = Generator(cross, sampling=generator.sampling, draft=draft)
        request = counted.add(prompt, drafters=names, max_tokens=24, ignore_eos=True)
        run(counted)
        assert request.tokens == plain, names
        made.append({name for name, counts in counted.stats.drafters.items() if counts[1]})
    assert made[1] <= {"lookup"}
    assert made[2] <= {"glm_nextn"}
    assert made[4] <= {"lookup", "draft_model"}
    assert made[5] == set()
    if draft == 3:
        assert made[:4] == [{"lookup", "glm_nextn"}, {"lookup"}, {"glm_nextn"}, {"draft_model"}]
        assert "draft_model" in made[4]


def test_requests_with_other_orders_share_rounds(cross):
    prompt = cross.llm.model.tokenizer.encode(PROMPT)
    generator = Generator(cross, sampling=Sampling.greedy(), draft=3)
    requests = [
        generator.add(prompt[i:], drafters=names, max_tokens=20, ignore_eos=True)
        for i, names in enumerate(ORDERS[:4])
    ]
    run(generator)
    for i, request in enumerate(requests):
        plain = generator.generate(prompt[i:], draft=0, max_tokens=20, ignore_eos=True)
        assert request.tokens == list(plain)
    assert len(generator.stats.drafters) == 3


def test_drafters_are_named_or_refused(cross):
    generator = Generator(cross)
    with pytest.raises(LinkError, match="no such drafter") as caught:
        generator.add([1, 2], drafters=["medusa"])
    assert "lookup, glm_nextn, draft_model" in str(caught.value)
    cross.llm.process(Batch.of([5, 6, 7], seq=3))
    assert len(cross.draft(3, 3, drafters=["draft_model"])) == 3
    assert cross.draft({3: 3}, drafters={3: ["lookup"]}) == {3: []}
    with pytest.raises(LinkError, match="no such drafter"):
        cross.draft(3, 3, drafters="eagle3")
    cross.remove(3)


class World:
    """A simulated machine with several drafters: their prices, rates, and how often they propose.

    A pass of n rows takes 1 + 0.05 (n - 1) seconds, noise aside.
    """

    def __init__(self, **drafters):
        self.drafters = drafters
        self.random = random.Random(1)

    def make(self):
        return Controller(
            {
                role: Expectation(8, 0.5, 0.15, often < 1)
                for role, (_, _, often) in self.drafters.items()
            }
        )

    def run(self, controller, n_rounds):
        """Return tokens a second, and how many drafts each drafter made in the last half."""
        tokens = seconds = 0.0
        made_by = dict.fromkeys(self.drafters, 0)
        for i in range(n_rounds):
            plan = controller.choose({0: 10**6}, {})[0]
            made, maker, took = 0, {}, {}
            for role, k in plan.items():
                price, _, often = self.drafters[role]
                took[role] = price * k * (1 + abs(self.random.gauss(0, 0.05)))
                if self.random.random() < often:
                    made = controller.keep(role, {0: Proposed(k, k, None)})[0]
                    maker = {0: role} if made else {}
                    if made:
                        break
            accepted = 0
            while accepted < made and self.random.random() < self.drafters[maker[0]][1]:
                accepted += 1
            took_all, passed = sum(took.values()), 1 + 0.05 * made
            asked = plan[maker[0]] if maker else max(plan.values(), default=0)
            controller.observe(
                Round(
                    {0: asked}, {0: made}, {0: accepted}, 1 + made, 0,
                    took_all, passed, 1e-6, maker, took,
                )
            )  # fmt: skip
            seconds += took_all + passed
            tokens += 1 + accepted
            if i >= n_rounds // 2:
                made_by[maker.get(0, "")] = made_by.get(maker.get(0, ""), 0) + 1
        return tokens / seconds, made_by

    def alone(self, role, n_rounds=800):
        """Return tokens a second with one drafter, whose lengths are chosen."""
        world = World(**{role: self.drafters[role]})
        return world.run(world.make(), n_rounds)[0]


@pytest.mark.parametrize(
    ("drafters", "first"),
    [
        # (seconds a draft, acceptance, how often it proposes)
        ({"lookup": (1e-4, 0.9, 0.3), "head": (0.06, 0.8, 1.0)}, "lookup"),
        ({"lookup": (1e-4, 0.1, 0.9), "head": (0.12, 0.8, 1.0)}, "head"),
        ({"small": (0.5, 0.9, 1.0), "head": (0.1, 0.8, 1.0)}, "head"),
        ({"head": (0.1, 0.3, 1.0), "small": (0.15, 0.9, 1.0)}, "small"),
    ],
)
def test_the_drafter_that_pays_is_found(drafters, first):
    """Faster than each alone, or nearly; the one that pays drafts nearly always when it can."""
    world = World(**drafters)
    speed, made_by = world.run(world.make(), 800)
    best = max(world.alone(role) for role in drafters)
    assert speed > 0.95 * best
    often = drafters[first][2]
    assert made_by[first] > 0.85 * often * 400
    if first == "lookup":  # both together are better than either
        assert speed > 1.08 * best
        assert made_by["head"] > 0.8 * (1 - often) * 400


def test_nothing_is_asked_where_nothing_pays():
    world = World(lookup=(1e-4, 0.02, 1.0), head=(0.9, 0.2, 1.0))
    speed, made_by = world.run(world.make(), 800)
    assert speed > 0.95
    assert made_by.get("", 0) > 0.9 * 400


def test_a_text_that_changes_changes_the_order():
    world = World(lookup=(1e-4, 0.95, 1.0), head=(0.12, 0.7, 1.0))
    controller = world.make()
    world.run(controller, 300)
    world.drafters["lookup"] = (1e-4, 0.02, 1.0)
    _, made_by = world.run(controller, 400)
    assert made_by["head"] > 100
    world.drafters["lookup"] = (1e-4, 0.95, 1.0)
    _, made_by = world.run(controller, 600)
    assert made_by["lookup"] > 200
