"""Adapters of contexts: which sequences have which, and that no row depends on others' choices."""

import numpy as np
import pytest
from harness.adapters import matrices_of, write_adapter
from harness.generated import write_generated
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    Batch,
    BatchError,
    Context,
    LinkError,
    StateError,
    link,
    load_adapter,
    load_model,
)
from mtpcore.gguf import write_model_file

NAMES = "one", "two"
CHOICES = ([], ["one"], ["two"], {"one": 0.5, "two": -1.5}, {"two": -1.5, "one": 0.5})


@pytest.fixture(scope="module")
def model():
    with load_model("demo") as opened:
        yield opened


@pytest.fixture(scope="module")
def paths(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    shapes = matrices_of(model)
    few = {name: shapes[name] for i, name in enumerate(sorted(shapes)) if i % 3 == 0}
    write_adapter(folder / "one.gguf", model.architecture, shapes, seed=1)
    write_adapter(folder / "two.gguf", model.architecture, few, seed=2, rank=7)
    return {name: folder / f"{name}.gguf" for name in NAMES}


@pytest.fixture(scope="module")
def adapters(paths):
    return {name: load_adapter(path) for name, path in paths.items()}


def feed(context, seq, choice, tokens):
    context.adapt(seq, choice)
    return context.process(Batch.of(tokens, seq=seq, pos=0, outputs="all")).logits


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_each_choice_alone_and_beside_others(model, adapters, backend):
    tokens = list(range(40, 60))
    size = {"n_seq_max": len(CHOICES), "n_ctx": 64, "backend": backend}
    alone = []
    for choice in CHOICES:
        context = Context(model, adapters=adapters, **size)
        alone.append((feed(context, 0, choice, tokens).tobytes(), context.digest(0)))
    plain = Context(model, **size)
    assert plain.process(Batch.of(tokens, outputs="all")).logits.tobytes() == alone[0][0]
    assert plain.digest(0) == alone[0][1]
    assert len({logits for logits, _ in alone[:4]}) == 4

    together = Context(model, adapters=adapters, n_batch=33, **size)  # in parts
    for seq, choice in enumerate(CHOICES):
        together.adapt(seq, choice)
    seqs, pos = np.repeat(np.arange(len(CHOICES)), 20), np.tile(np.arange(20), len(CHOICES))
    made = together.process(Batch(tokens * len(CHOICES), seq=seqs, pos=pos, outputs="all")).logits
    for seq, (logits, digest) in enumerate(alone):
        assert made[seqs == seq].tobytes() == logits
        assert together.digest(seq) == digest


def test_the_order_in_which_adapters_were_loaded_changes_nothing(model, adapters):
    tokens, turned = list(range(40, 60)), dict(reversed(adapters.items()))
    for choice in CHOICES:
        made = {feed(Context(model, 64, adapters=a), 0, choice, tokens).tobytes()
                for a in (adapters, turned)}  # fmt: skip
        assert len(made) == 1


def test_it_is_the_model_with_merged_weights(tmp_path):
    """In float32 both differ by the rounding of sums alone."""
    with load_model(write_generated(tmp_path / "m.gguf", "llama", "F32")) as model:
        shapes = matrices_of(model)
        changes = write_adapter(tmp_path / "a.gguf", model.architecture, shapes, seed=3)
        metadata = {k: v for k, v in model.metadata.items() if k != "general.architecture"}
        tensors = {name: t.array() for name, t in model.tensors.items()}
        merged = {
            name: (t + changes.get(name, 0)).astype(np.float32) for name, t in tensors.items()
        }
        write_model_file(tmp_path / "merged.gguf", model.architecture, metadata, merged)
        context = Context(
            model, 64, adapters={"a": load_adapter(tmp_path / "a.gguf")}, kv_dtype="f32"
        )
        tokens = list(range(3, 23))
        made = feed(context, 0, ["a"], tokens)
        plain = Context(model, 64, kv_dtype="f32").process(Batch.of(tokens, outputs="all")).logits
    with load_model(tmp_path / "merged.gguf") as model:
        wanted = Context(model, 64, kv_dtype="f32").process(Batch.of(tokens, outputs="all")).logits
    spread = np.abs(wanted - plain).max()
    assert np.abs(made - wanted).max() < 1e-4 * spread


def test_a_table_and_an_output_that_the_file_holds_once(tmp_path):
    """As in a file that holds both, each with what is added to it alone."""
    with load_model(write_generated(tmp_path / "m.gguf", "llama", "F32")) as model:
        metadata = {k: v for k, v in model.metadata.items() if k != "general.architecture"}
        tensors = {name: t.array() for name, t in model.tensors.items()}
        architecture, shape = model.architecture, model.tensors["token_embd.weight"].shape
    table = tensors.pop("output.weight").copy()
    tensors["token_embd.weight"] = table
    write_model_file(tmp_path / "tied.gguf", architecture, metadata, tensors)
    names = "token_embd.weight", "output.weight"
    changes = write_adapter(tmp_path / "a.gguf", architecture, dict.fromkeys(names, shape))
    merged = {name: (table + changes[name]).astype(np.float32) for name in names}
    write_model_file(tmp_path / "both.gguf", architecture, metadata, {**tensors, **merged})
    tokens = list(range(3, 23))
    with load_model(tmp_path / "both.gguf") as model:
        wanted = Context(model, 64, kv_dtype="f32").process(Batch.of(tokens, outputs="all")).logits
    adapter = load_adapter(tmp_path / "a.gguf")
    with load_model(tmp_path / "tied.gguf") as model:
        context = Context(model, 64, adapters={"a": adapter}, kv_dtype="f32")
        made = feed(context, 0, ["a"], tokens)
        plain = Context(model, 64, kv_dtype="f32").process(Batch.of(tokens, outputs="all")).logits
    assert np.abs(made - wanted).max() < 1e-4 * np.abs(wanted - plain).max()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_rows_in_the_place_of_tokens_are_in_no_table(tmp_path, backend):
    with load_model(write_generated(tmp_path / "m.gguf", "llama", "F32")) as model:
        table = {"token_embd.weight": model.tensors["token_embd.weight"].shape}
        write_adapter(tmp_path / "a.gguf", model.architecture, table)
        adapter = load_adapter(tmp_path / "a.gguf")
        context = Context(model, 64, n_seq_max=2, adapters={"a": adapter}, backend=backend)
        rows = np.random.default_rng(1).normal(size=(3, model.hparams.width)).astype(np.float32)
        made = []
        for seq, choice in enumerate(([], ["a"])):
            context.adapt(seq, choice)
            given = Batch(embeddings=rows, seq=seq, pos=range(3), outputs="all")
            made.append(context.process(given).logits.tobytes())
            made.append(context.process(Batch.of([5], seq=seq, pos=3)).logits.tobytes())
        assert made[0] == made[2]
        assert made[1] != made[3]


@searching(25)
@given(st.data())
def test_states_of_sequences_with_adapters(model, adapters, data):
    """Forks, removal, rewinding and saving keep them, as a fresh sequence has them."""
    context = Context(model, 64, n_seq_max=3, adapters=adapters)
    choices, texts = {}, {}
    for _ in range(data.draw(st.integers(1, 8))):
        seq = data.draw(st.integers(0, 2))
        act = data.draw(st.sampled_from(["feed", "fork", "remove", "rewind", "save"]))
        if act == "feed":
            if not texts.get(seq):
                choices[seq] = data.draw(st.sampled_from(CHOICES))
                context.adapt(seq, choices[seq])
            more = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=5))
            texts[seq] = texts.get(seq, []) + more
            context.process(Batch.of(more, seq=seq, pos=len(texts[seq]) - len(more)))
        elif act == "remove":
            context.remove(seq)
            texts.pop(seq, None)
            choices.pop(seq, None)
        elif texts.get(seq) and act == "rewind":
            n = data.draw(st.integers(1, len(texts[seq])))
            context.rewind(seq, n)
            texts[seq] = texts[seq][:n]
        elif texts.get(seq):
            new = (seq + 1) % 3
            context.remove(new)
            if act == "fork":
                context.fork(seq, new)
            else:
                context.load(new, context.save(seq))
            choices[new], texts[new] = choices[seq], [*texts[seq]]
    for seq, text in texts.items():
        fresh = Context(model, 64, adapters=adapters)
        feed(fresh, 0, choices[seq], text)
        assert context.digest(seq) == fresh.digest(0)
        made, wanted = (
            one.process(Batch.of([7], seq=own, pos=len(text))).logits.tobytes()
            for one, own in ((context, seq), (fresh, 0))
        )
        assert made == wanted


def test_a_state_goes_where_its_adapters_are(model, adapters):
    with_both = Context(model, 64, adapters=adapters)
    feed(with_both, 0, ["two"], [5, 6, 7])
    state = with_both.save(0)
    only_two = Context(model, 64, adapters={"renamed": adapters["two"]})
    only_two.load(0, state)
    assert only_two.digest(0) == with_both.digest(0)
    for other in (Context(model, 64), Context(model, 64, adapters={"two": adapters["one"]})):
        with pytest.raises(StateError, match="does not have"):
            other.load(0, state)
        assert other.length(0) == 0
    with_both.remove(0)
    feed(with_both, 0, [], [5, 6, 7])
    Context(model, 64).load(0, with_both.save(0))


def test_batches_without_adapters_run_as_in_a_context_without_any(model, adapters):
    context = Context(model, 64, n_seq_max=2, adapters=adapters)
    feed(context, 0, {"one": 0.0}, [5, 6, 7])
    assert context.runner._adapted_plan is None
    feed(context, 1, ["one"], [5, 6, 7])
    assert context.runner._adapted_plan is not None


REFUSED = {
    "no such adapter": (["three"], "no such adapter"),
    "a text": ("one", "chosen by name"),
    "a number": (3, "chosen by name"),
    "not a number": ({"one": float("nan")}, "finite"),
    "too large": ({"one": 1e39}, "finite"),
    "a word": ({"one": "1"}, "finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_choice_that_is_none_changes_nothing(model, adapters, case):
    choice, message = REFUSED[case]
    context = Context(model, 64, adapters=adapters)
    context.adapt(0, ["two"])
    with pytest.raises(BatchError, match=message):
        context.adapt(0, choice)
    wanted = feed(Context(model, 64, adapters=adapters), 0, ["two"], [5, 6, 7])
    assert context.process(Batch.of([5, 6, 7], outputs="all")).logits.tobytes() == wanted.tobytes()


def test_removal_takes_adapters_away(model, adapters):
    context = Context(model, 64, adapters=adapters)
    feed(context, 0, ["one"], [5, 6, 7])
    context.remove(0)
    made = context.process(Batch.of([5, 6, 7], outputs="all")).logits
    assert made.tobytes() == feed(Context(model, 64), 0, [], [5, 6, 7]).tobytes()


def test_an_act_that_fails_takes_the_choice_back(model, adapters):
    context = Context(model, 64, adapters=adapters)
    context.adapt(0, ["two"])

    def fail():
        with context._transaction((0,)):
            context.runner.adapt(0, ["one"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    made = context.process(Batch.of([5, 6, 7], outputs="all")).logits
    wanted = feed(Context(model, 64, adapters=adapters), 0, ["two"], [5, 6, 7])
    assert made.tobytes() == wanted.tobytes()


def test_a_sequence_that_holds_rows_keeps_its_adapters(model, adapters):
    context = Context(model, 64, adapters=adapters)
    feed(context, 0, ["two"], [5, 6, 7])
    with pytest.raises(BatchError, match="empty sequence"):
        context.adapt(0, ["one"])
    with pytest.raises(BatchError, match="no adapters"):
        Context(model, 64).adapt(0, ["one"])
    cross = link(context, [])
    with pytest.raises(LinkError, match="together"):
        context.adapt(0, [])
    cross.remove(0)
    cross.adapt(0, ["one"])
    assert context.adapters == NAMES


def wrong(model, tmp_path, **changed):
    shapes = matrices_of(model, ["blk.0.attn_q.weight"])
    given = {"architecture": model.architecture, "shapes": shapes, **changed}
    write_adapter(tmp_path / "a.gguf", given["architecture"], given["shapes"])
    return Context(model, 64, adapters={"a": load_adapter(tmp_path / "a.gguf")})


def test_adapters_of_other_models_are_refused(model, tmp_path):
    with pytest.raises(LinkError, match="another architecture"):
        wrong(model, tmp_path, architecture="llama")
    with pytest.raises(LinkError, match="another shape"):
        wrong(model, tmp_path, shapes={"blk.0.attn_q.weight": (3, 5)})
    with pytest.raises(LinkError, match="does not have"):
        wrong(model, tmp_path, shapes={"blk.99.attn_q.weight": (3, 5)})
    with pytest.raises(LinkError, match="another shape"):
        wrong(model, tmp_path, shapes={"token_embd.weight": (model.hparams.n_vocab, 5)})
    (of_head, *_) = (name for name in model.tensors if name.endswith("eh_proj.weight"))
    with pytest.raises(LinkError, match="heads"):
        wrong(model, tmp_path, shapes={of_head: (3, 5)})
    wrong(model, tmp_path)
