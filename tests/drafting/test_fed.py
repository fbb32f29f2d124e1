"""Drafters that are programs of a plugin's own, and read the target's rows."""

from contextlib import nullcontext

import msgspec
import numpy as np
import pytest
import toy
from harness.search import searching
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

import mtpcore.models
from mtpcore import Batch, Context, Generator, LinkError, PluginError, Sampling, link
from mtpcore.conversion.family import find_family
from mtpcore.declarations.checks import check_spec
from mtpcore.discovery.registry import Registry
from mtpcore.plugin import Checkpoint, DrafterSpec, DraftTree, FedProposer, Feed, Fit, Rename
from mtpcore.testing import Subject, check_broken_rows, check_texts, cover_texts
from mtpcore.testing.machine import machine_of

SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=1.1, seed=3),
    Sampling(temperature=0.8, top_k=20, repetition_penalty=1.3, frequency_penalty=0.2, seed=4),
)


class NumpyHead(FedProposer):
    """The toy family's head, in NumPy."""

    def __init__(self, model):
        n = model.hparams.n_layers
        names = ("join", "norm", "embed", "head")
        found = {name: f"blk.{n}.{name}.weight" for name in names}
        borrowed = {"embed": "token_embd.weight", "head": "output.weight"}
        self.w = {
            name: model.tensors[at if at in model.tensors else borrowed[name]].array()
            for name, at in found.items()
        }

    def step(self, token, row):
        """The next row, and logits."""
        x = self.w["join"] @ np.concatenate([self.w["embed"][token], row])
        row = x / np.sqrt((x**2).mean() + toy.EPS) * self.w["norm"]
        return row, self.w["head"] @ row

    def draft(self, ask):
        row = ask.rows("hidden", len(ask.tokens) - 2)[0] if len(ask.tokens) > 1 else None
        drafts = []
        while row is not None and len(drafts) < ask.k:
            row, logits = self.step(drafts[-1] if drafts else ask.tokens[-1], row)
            token = ask.choose(logits, drafts)
            if token is None:
                break
            drafts.append(token)
        return drafts


FED = DrafterSpec(
    name="numpy_head",
    fit=Fit(architectures=frozenset({"toy"}), tensors=toy.HEAD.fit.tensors),
    shape="proposer",
    proposer=NumpyHead,
    feeds=(Feed(slot="hidden", pairing="same-token"),),
    limit=8,
    acceptance=(0.1, 0.4),
)
PLUGINS = Registry.of(toy, toy.offering(FED))


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    path = tmp_path_factory.mktemp("fed") / "toy.gguf"
    toy.write(path, toy.trunk_tensors() | toy.head_tensors(), heads=1)
    return Subject("fed", str(path), drafter="numpy_head", plugins=PLUGINS)


def drafts_of(family, drafter, p_min=0.0):
    cross = link(family.context(64, backend="reference", kv_dtype="f32"), drafter)
    found = []
    for place, token in enumerate(family.text(12).tolist()):
        cross.llm.process(Batch.of([token], pos=place))
        for sampling in SAMPLINGS:
            found.append(cross.draft(0, 4, sampling, p_min=p_min))
            cross.pending(0, sampling)
        cross.rollback(0, place + 1)
    return found


@pytest.mark.parametrize("p_min", [0.0, 0.2])
def test_drafts_are_those_of_the_same_head_as_a_graph(family, p_min):
    """Greedy and sampled, with cuts and penalties, and where drafts end early."""
    found = drafts_of(family, "numpy_head", p_min)
    assert found == drafts_of(family, "toy_head", p_min)
    assert {len(drafts) for drafts in found} >= ({4} if not p_min else {0, 4})


def torch_head(torch):
    """Return the same head as a module of PyTorch."""

    class TorchHead(NumpyHead):
        def __init__(self, model):
            super().__init__(model)
            self.w = {name: torch.tensor(values) for name, values in self.w.items()}

        @torch.inference_mode()
        def step(self, token, row):
            x = self.w["join"] @ torch.cat([self.w["embed"][int(token)], torch.as_tensor(row)])
            row = x / torch.sqrt((x**2).mean() + toy.EPS) * self.w["norm"]
            return row, (self.w["head"] @ row).numpy()

    return TorchHead


@pytest.mark.parametrize("p_min", [0.0, 0.2])
def test_a_head_of_pytorch_drafts_the_same(family, p_min):
    spec = msgspec.structs.replace(
        FED, name="torch_head", proposer=torch_head(pytest.importorskip("torch"))
    )
    plugins = Registry.of(toy, toy.offering(FED, spec))
    both = Subject("torch", family.path, drafter="torch_head", plugins=plugins)
    found = drafts_of(both, "torch_head", p_min)
    assert found == drafts_of(both, "numpy_head", p_min)
    assert {len(drafts) for drafts in found} >= ({4} if not p_min else {0, 4})


def test_texts_do_not_depend_on_it(family):
    rates = [check_texts(family, texts) for texts in cover_texts(10)[::2]]
    assert max(rates) > 0.02
    assert check_broken_rows(family, 0) == 0
    assert check_broken_rows(family, 12) > 0


@pytest.mark.hypothesis
def test_rows_keep_in_step(family):
    """Whatever is rejected, taken back, copied or saved, rows are those of a Cross that is new."""

    class Machine(machine_of(family)):
        def equals_fresh(self):
            fresh = self.make(type(self.interrupter)())
            for seq, text in self.texts.items():
                fresh.llm.process(Batch.of(text, seq=seq))
                box, other = (next(iter(c.links.boxes)) for c in (self.cross, fresh))
                assert box.length(seq) == other.length(seq) == len(text)
                rows = box.get(seq, 0, len(text))
                np.testing.assert_array_equal(rows, other.get(seq, 0, len(text)))

    few = searching(16, stateful_step_count=20, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=few)


def made(family, draft, **changes):
    """Link a proposer of this function."""
    kind = type("Made", (FedProposer,), {"draft": lambda self, ask: draft(ask)})
    spec = DrafterSpec(
        name="made", fit=Fit(), shape="proposer", proposer=lambda model: kind(),
        feeds=FED.feeds, **changes,
    )  # fmt: skip
    model = toy.load_model(family.path, plugins=Registry.of(toy, toy.offering(spec)))
    cross = link(Context(model, 64), "made")
    cross.llm.process(Batch.of([5, 6, 7, 8]))
    return cross


def test_it_sees_what_is_asked(family):
    seen = {}

    def draft(ask):
        seen.update(tokens=ask.tokens.tolist(), seq=ask.seq, k=ask.k, sampling=ask.sampling)
        seen["rows"] = ask.rows("hidden")
        seen["part"] = ask.rows("hidden", 1, 3)
        return DraftTree(ask.rank(np.arange(64.0), 3), [-1, -1, -1])

    cross = made(family, draft)
    sampling = Sampling(temperature=0.5, seed=9)
    tree = cross.draft(0, 3, sampling)
    assert seen["tokens"] == [5, 6, 7, 8, cross.pending(0)]
    assert (seen["seq"], seen["k"], seen["sampling"]) == (0, 3, sampling)
    alone = Context(cross.llm.model, 64, taps=["hidden"])
    rows = alone.process(Batch.of([5, 6, 7, 8])).tap("hidden")
    np.testing.assert_array_equal(seen["rows"], rows)
    np.testing.assert_array_equal(seen["part"], rows[1:3])
    assert len(tree) == 3
    assert tree.tokens[0] > 50


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (lambda ask: 1 / 0, "draft raised ZeroDivisionError"),
        (lambda ask: ask.rows("residual"), "no feed of this slot"),
        (lambda ask: ask.rows("hidden", 0, 9), "not processed"),
        (lambda ask: ask.choose(np.zeros(65, np.float32)), "SamplingError"),
    ],
)
def test_what_it_raises_names_the_plugin(family, draft, said):
    cross = made(family, draft)
    before = cross.digest(0)
    with pytest.raises(PluginError, match=said) as caught:
        cross.draft(0, 3)
    assert "drafter 'made' of plugin 'other'" in caught.value.where
    assert cross.digest(0) == before
    assert cross.verify({0: []})[0].accepted == 0


def test_its_output_is_not_trusted(family):
    cross = made(family, lambda ask: [3, 9999, 4])
    assert cross.draft(0, 3) == [3]
    assert cross.invalid == 1


@pytest.mark.parametrize("is_tree", [False, True])
def test_no_more_is_drafted_than_its_limit(family, is_tree, caplog):
    """Nor asked for; the others are dropped."""
    asked, parents = [], range(-1, 3)

    def draft(ask):
        asked.append(ask.k)
        return DraftTree([3] * 4, parents) if is_tree else [3] * 4

    cross = made(family, draft, limit=2)
    assert list(cross.draft(0, 5).tokens if is_tree else cross.draft(0, 5)) == [3, 3]
    assert list(cross.draft(0, 1).tokens if is_tree else cross.draft(0, 1)) == [3]
    assert asked == [2, 1]
    assert "more than 2 drafts" in caplog.text


def test_rows_that_were_not_kept_are_an_error(family):
    llm = Context(family.model, 64)
    llm.process(Batch.of([1, 2]))
    with pytest.raises(LinkError, match="not kept"):
        link(llm, "numpy_head")
    assert llm.owner is None


def test_what_it_declares_for_conversion_counts(tmp_path):
    """It may read weights of a file that holds no graph of its own."""
    table = Checkpoint(
        architectures=frozenset({"LlamaForCausalLM"}),
        heads="model.glance.{i}.weight",
        tensors=(Rename("model.glance.{i}.weight", "blk.{n}.glance.weight"),),
    )
    spec = msgspec.structs.replace(
        FED, fit=Fit(), checkpoint=table, min_types=(("blk.{n}.glance.weight", "F32"),)
    )
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    known = Registry.of(mtpcore.models, toy.offering(spec))
    found = find_family(config, ["model.glance.0.weight"], tmp_path, known)
    assert (found.heads, found.n_heads) == (table, 1)
    assert spec.min_types[0] in found.head_min_types


@pytest.mark.parametrize(
    "feed", [Feed(slot="hidden"), Feed(slot="hidden", pairing="same-token", recycle="hidden")]
)
def test_feeds_of_proposers_pair_rows_with_their_own_tokens(feed):
    with pytest.raises(PluginError, match="recycles them itself"):
        check_spec(
            DrafterSpec(**{n: getattr(FED, n) for n in FED.__struct_fields__} | {"feeds": (feed,)})
        )


def test_beside_others_and_after_a_save(family):
    """Behind lookup; a saved sequence goes on with its rows."""
    crosses = [link(family.context(64), ["lookup", "numpy_head"]) for _ in range(2)]
    crosses[0].llm.process(Batch.of(family.text(9).tolist()))
    crosses[0].pending(0, SAMPLINGS[1])
    sampling = crosses[1].load(0, crosses[0].save(0))
    assert sampling == SAMPLINGS[1]
    drafts = [cross.draft(0, 4, sampling) for cross in crosses]
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 4
    generator = Generator(link(family.context(64), ["lookup", "numpy_head"]), sampling=sampling)
    text = generator.generate([5, 6], draft="auto", max_tokens=40, ignore_eos=True)
    plain = Generator(family.context(64), sampling=sampling)
    assert list(text) == list(plain.generate([5, 6], max_tokens=40, ignore_eos=True))


class Remembering(FedProposer):
    """Drafts from the sum of a few rows that it keeps; ``spare`` of them too many are wrong."""

    spare = 0

    def __init__(self, model):
        self.head = model.tensors["output.weight"].array()
        self.kept = {}

    def draft(self, ask):
        tokens = ask.tokens[:-1]
        known, kept = self.kept.get(ask.seq, (tokens[:0], []))
        n = min(len(known), len(tokens))
        same = int(np.argmin([*(known[:n] == tokens[:n]), False]))
        kept = kept[: min(same + self.spare, n)]
        kept += list(ask.rows("hidden", len(kept)))
        self.kept[ask.seq] = tokens.copy(), kept
        token = ask.choose(self.head @ np.sum(kept[-3:], axis=0), [])
        return [] if token is None else [token]


@pytest.mark.hypothesis
@pytest.mark.parametrize("spare", [0, 1])
def test_a_row_that_a_proposer_keeps_too_long_is_found(spare, family):
    kind = type("Kept", (Remembering,), {"spare": spare})
    spec = DrafterSpec(name="made", fit=Fit(), shape="proposer", proposer=kind, feeds=FED.feeds)
    plugins = Registry.of(toy, toy.offering(spec))
    machine = machine_of(Subject("kept", family.path, drafter="made", plugins=plugins))
    few = searching(16, stateful_step_count=20, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="a new Cross") if spare else nullcontext():
        run_state_machine_as_test(machine, settings=few)
