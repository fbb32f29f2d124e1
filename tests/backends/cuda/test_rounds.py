"""A round of a generator on one device: drafts and their verification are one call."""

import msgspec
import pytest
from harness import dflash, hybrid_family, peagle
from harness.families import FAMILIES, HYBRID
from harness.step_heads import written

from mtpcore import Generator
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda.drafts import DraftLoop
from mtpcore.backends.draft import run_schedule
from mtpcore.cross.ahead import VerificationAhead
from mtpcore.declarations.spec import TreeShape
from mtpcore.sampling import Sampling
from mtpcore.testing import Subject


class Counts:
    """Counts what a device is asked for outside of its graphs.

    The host waits where it reads what was started since it read last.
    """

    def __init__(self, device, monkeypatch):
        self.device, self.n, self.is_busy = device, {"wait": 0}, False
        for name in ("launch", "replay", "read", "upload"):
            monkeypatch.setattr(device, name, self._counted(name, getattr(device, name)))

    def _counted(self, name, call):
        self.n[name] = 0

        def counted(*arguments, **options):
            inside = self.device.recorded is not None or self.n.get("inside")
            self.n[name] += not inside
            if name == "read":
                self.n["wait"] += self.is_busy
            self.is_busy = name in ("launch", "replay") or (self.is_busy and name != "read")
            if name == "replay" and not inside:
                self.n["inside"] = True
                try:
                    return call(*arguments, **options)
                finally:
                    self.n["inside"] = False
            return call(*arguments, **options)

        return counted


N_WAITS = 2  # for a round's graph, and for which rows are finite; of each further graph's, too
NOISY = Sampling(temperature=0.7, seed=5)
PENALISED = Sampling(temperature=0.7, seed=5, repetition_penalty=1.3, frequency_penalty=0.4)


def texts(cross, n_tokens=14, sampling=NOISY, **options):
    """Return texts of two requests, and what a device was asked for in each round."""
    generator = Generator(cross, sampling=sampling, **options)
    requests = [generator.add([3, 9, 4, 8][: 2 + i], max_tokens=n_tokens) for i in range(2)]
    while not all(request.done for request in requests):
        generator.step()
        yield [*map(list, (request.tokens for request in requests))]


ROUNDS = {str(family): (family, NOISY) for family in (*FAMILIES, HYBRID)}
ROUNDS["penalties"] = FAMILIES[0], PENALISED
ROUNDS["recurrent heads"] = "recurrent heads", NOISY


@pytest.mark.parametrize(("family", "sampling"), ROUNDS.values(), ids=ROUNDS)
def test_drafts_and_their_verification_are_one_call(
    emulated, family, sampling, monkeypatch, tmp_path
):
    if family == "recurrent heads":
        family = hybrid_family.subject(tmp_path, n_heads=2)
    on_device = msgspec.structs.replace(family, backend=CudaBackend(emulated))
    counts, rounds = Counts(emulated, monkeypatch), []
    cross = on_device.link(n_seq_max=2, n_batch=64)
    n_tokens = 30 if sampling.has_penalties else 14  # some graphs grow with the text
    for made in texts(cross, n_tokens, sampling, draft=2):
        rounds.append(dict(counts.n))
        counts.n.update(dict.fromkeys(counts.n, 0))
        text = made
    n_graphs = 1 + len(
        cross.speculation.drafters["draft"].spec.graphs
    )  # one reads what was accepted
    steady = [of for of in rounds if of["replay"] == n_graphs]
    assert steady
    assert all(of["launch"] <= 12 for of in steady)  # rows that wait, and whether they are finite
    assert all(of["upload"] <= 2 and of["wait"] <= N_WAITS + n_graphs - 1 for of in steady)
    plain = on_device.link(n_seq_max=2, n_batch=64)
    assert text == [*texts(plain, n_tokens, sampling)][-1]


CUT = Sampling(temperature=0.8, seed=2, top_k=20, min_p=0.01)
BLOCKS = {
    "dflash": {"draft": 4},
    "of causal rows": {"draft": 4},
    "peagle": {"draft": 3},
    "cuts": {"draft": 3, "sampling": CUT},
    "penalties": {"draft": 3, "sampling": PENALISED, "n_tokens": 30},
    "dspark": {"draft": 3},
    "xpress": {"draft": 3},
    "xpress, cuts": {"draft": 2, "sampling": CUT},
    "dspark, penalties": {"draft": 2, "sampling": PENALISED, "n_tokens": 20},
}


@pytest.fixture
def block_family(request, emulated, tmp_path):
    """Return a target and what drafts its blocks, on the device."""
    if request.param == "peagle":
        c = peagle.VARIANTS[next(iter(peagle.VARIANTS))]
        target, drafter = dflash.write_target(tmp_path), peagle.write_head(tmp_path, c)
    else:
        named = [name for name in ("causal", "dspark", "xpress") if name in request.param]
        c = dflash.VARIANTS[named[0] if named else "z-lab"]
        target, drafter = dflash.write_target(tmp_path), dflash.write_drafter(tmp_path, c)
    return Subject(request.param, str(target), str(drafter), backend=CudaBackend(emulated))


@pytest.mark.parametrize(("block_family", "options"), BLOCKS.items(), indirect=["block_family"])
def test_a_block_and_its_verification_are_one_call(block_family, options, emulated, monkeypatch):
    counts, rounds = Counts(emulated, monkeypatch), []
    for made in texts(block_family.link(n_seq_max=2, n_batch=64), **options):
        rounds.append(dict(counts.n))
        counts.n.update(dict.fromkeys(counts.n, 0))
        text = made
    has_entries = bool(block_family.spec.block.entries)  # of accepted tokens, by another graph
    n_graphs = 1 + has_entries
    steady = [of for of in rounds if of["replay"] == n_graphs and of["launch"] <= 12]
    assert steady
    assert all(of["upload"] <= 2 and of["wait"] <= N_WAITS for of in steady)
    plain = block_family.link(n_seq_max=2, n_batch=64)
    assert text == [*texts(plain, **(options | {"draft": 0}))][-1]


@pytest.fixture
def ahead(monkeypatch):
    """Whether each verification that was to run with its drafts has."""
    take, noted = VerificationAhead.take, []

    def note(self, admitted):
        made = take(self, admitted)
        noted.append(made is not None)
        return made

    monkeypatch.setattr(VerificationAhead, "take", note)
    return noted


FIXED = TreeShape(paths=((1,), (0, 0), (0, 2), (1, 0)))
GROWN = TreeShape(depth=2, width=3, n_nodes=5)
DEEP = TreeShape(depth=3, width=3, n_nodes=6)  # rows come after rows of the same pass
TREES = {
    "grown": ("demo", {"tree": TreeShape(depth=2, width=2, n_nodes=3)}),
    "fixed, of heads": ("cell", {"tree": FIXED}),
    "grown, of heads": ("steps", {"tree": GROWN, "sampling": CUT}),
    "grown, penalties": ("steps", {"tree": GROWN, "sampling": PENALISED, "n_tokens": 24}),
    "grown, recurrent": ("hybrid", {"tree": DEEP, "draft": 3}),
}


@pytest.mark.parametrize(("name", "options"), TREES.values(), ids=TREES)
def test_trees_change_no_text(emulated, name, options, ahead, tmp_path, monkeypatch):
    """They are drafted and verified in one call, and are those of the definition."""
    named = {"demo": FAMILIES[-1], "hybrid": HYBRID}
    family, options = named.get(name) or written(tmp_path, name), dict(options)
    family = msgspec.structs.replace(family, backend=CudaBackend(emulated))
    drafter = msgspec.structs.replace(family.spec, shape="tree", tree=options.pop("tree"))
    grown = family.link(n_seq_max=2, n_batch=64, drafter=drafter)
    plain = family.link(n_seq_max=2, n_batch=64)
    made = [*texts(plain, **(options | {"draft": 0}))][-1]
    counts, calls, run = Counts(emulated, monkeypatch), [], DraftLoop.run

    def compared(self, schedule):
        before = dict(counts.n)
        found = run(self, schedule)
        calls.append(tuple(counts.n[of] - before[of] for of in ("replay", "launch")))
        assert found == run_schedule(schedule)
        return found

    monkeypatch.setattr(DraftLoop, "run", compared)
    assert [*texts(grown, **({"draft": 2} | options))][-1] == made
    assert (1, 0) in calls
    assert True in ahead


@pytest.mark.parametrize(("family", "least"), [(FAMILIES[0], 0.2), (HYBRID, 0.9)], ids=str)
def test_texts_are_the_same_where_drafts_end_early(emulated, family, least, ahead):
    """A verification that did not run behind its drafts runs by itself."""
    on_device = msgspec.structs.replace(family, backend=CudaBackend(emulated))
    made = [
        [*texts(on_device.link(n_seq_max=2, n_batch=64), draft=k, p_min=p_min)][-1]
        for k, p_min in ((0, 0.0), (2, least))
    ]
    assert made[0] == made[1]
    assert {*ahead} == {False, True}
