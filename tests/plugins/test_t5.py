"""T5 against what transformers makes of small random models, from the checkpoint on."""

import json
import lzma
from collections import Counter
from functools import partial
from types import ModuleType, SimpleNamespace

import msgspec
import numpy as np
import pytest
from harness import t5
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from mtpcore_t5 import T5
from mtpcore_t5.graph import is_tied

import mtpcore
from mtpcore import (
    LM,
    Batch,
    CapacityError,
    Context,
    Cross,
    DraftTree,
    Generator,
    Prompt,
    Rows,
    Sampling,
    link,
    load_model,
)
from mtpcore.backends.reference.backend import ReferencePlan
from mtpcore.cli.main import main
from mtpcore.conversion import convert
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.plugin import Proposer, hookimpl
from mtpcore.testing import Subject, check_graphs

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4
GREEDY = Sampling.greedy()


def write(folder, s):
    hf = write_checkpoint(folder / "hf", t5.configuration(s), t5.weights(s), tokenizer(t5.N_VOCAB))
    convert(hf, folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"


def references(name):
    """Return what transformers made of a shape."""
    with np.load(DATA / "t5" / "refs.npz") as file:
        return {key.partition("/")[2]: file[key] for key in file if key.startswith(f"{name}/")}


@pytest.fixture(scope="module", params=t5.SHAPES)
def made(request, tmp_path_factory):
    """Return a shape, its model in float32, and its references."""
    s = t5.SHAPES[request.param]
    with load_model(write(tmp_path_factory.mktemp("t5"), s)) as model:
        yield s, model, references(request.param)


def open_context(model, **settings):
    return Context(model, 192, **{"kv_dtype": "f32", "threads": 2, **settings})


@backends
def test_encoder_and_decoder(made, backend):
    s, model, refs = made
    cross = link(open_context(model, backend=backend, n_batch=16))
    read = cross.contexts["encoder"].process(Batch.of(t5.source(s), outputs="none"))
    assert np.abs(read.tap("hidden") - refs["hidden"]).max() < CLOSE
    out = cross.llm.process(Batch.of(t5.text(s), outputs="all"))
    assert np.abs(refs["logits"]).max() > 1
    assert np.abs(out.logits - refs["logits"]).max() < CLOSE


@backends
def test_text(made, backend):
    """The prompt is the encoder's; drafts of right tokens, and of wrong ones, change nothing."""
    s, model, refs = made
    wanted = refs["greedy"].tolist()

    class Some(Proposer):
        def propose(self, seq, tokens, k):
            at = len(tokens) - 1
            return [wanted[at] if at % 3 else 7, *wanted[at + 1 : at + k]]

    for drafter, draft in (([], 0), (Some(), 5)):
        cross = link(open_context(model, backend=backend), drafter)
        generator = Generator(cross, sampling=GREEDY, draft=draft)
        made_text = generator.generate(t5.source(s), max_tokens=len(wanted), ignore_eos=True)
        assert list(made_text) == wanted
        assert (generator.stats.accepted > 10) == bool(draft)
        assert generator.stats.prompt_tokens == s.n_source


def test_a_context_alone_gets_its_encoder(made):
    s, model, refs = made
    generator = Generator(open_context(model), sampling=GREEDY)
    text = list(generator.generate(t5.source(s), max_tokens=9, ignore_eos=True))
    assert text == refs["greedy"][:9].tolist()
    cross = Cross(
        llm=open_context(model), encoder=open_context(model, n_batch=192, graph_type="encoder")
    )
    assert [*cross.links] == [*generator.cross.links] != []


def test_texts_beside_each_other(made):
    """Texts share batches, in the encoder and in the decoder; each is what it is alone."""
    s, model, _ = made
    sampling = Sampling(temperature=0.8, seed=3)
    prompts = [t5.source(s)[:n].tolist() for n in (3, 50, 17, s.n_source)]

    def texts(prompts, **settings):
        generator = Generator(
            link(open_context(model, n_seq_max=len(prompts), **settings), []),
            sampling=sampling,
            prefix_cache="all",
        )
        requests = [generator.add(p, max_tokens=12, ignore_eos=True) for p in prompts]
        while generator.active:
            generator.step()
        return [request.tokens for request in requests]

    alone = [texts([prompt])[0] for prompt in prompts]
    assert len({tuple(text) for text in alone}) == len(prompts)
    assert texts(prompts) == alone
    assert texts(prompts, n_batch=5, threads=1) == alone


def test_a_prompt_that_was_encoded_by_hand_is_left_alone(made):
    cross = link(open_context(made[1], n_seq_max=1), [])
    generator = Generator(cross, sampling=GREEDY)
    cross.encode({0: [1, 2, 3]})
    with pytest.raises(CapacityError, match="no sequence is free") as caught:
        list(generator.generate([4, 5]))
    assert caught.value.got == "sequence 0: 3 tokens processed by hand"
    cross.llm.process(Batch.of([0]))
    assert cross.tokens(0) == [0]


def rows_of(model, prompts, tokens, **settings):
    """Return logits of one batch of several sequences."""
    cross = link(open_context(model, n_seq_max=len(prompts), **settings), [])
    cross.encode(dict(enumerate(prompts)))
    seq = [seq for seq in range(len(prompts)) for _ in tokens]
    out = cross.llm.process(Batch([*tokens] * len(prompts), seq=seq, outputs="all"))
    return out.logits.reshape(len(prompts), len(tokens), -1)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0"])
def test_bits_do_not_depend_on_neighbours(made, kv_dtype):
    s, model, _ = made
    prompts = [t5.source(s)[:n].tolist() for n in (2, 33, s.n_source)]
    tokens = t5.text(s)[:5].tolist()
    together = rows_of(model, prompts, tokens, kv_dtype=kv_dtype)
    for prompt, rows in zip(prompts, together, strict=True):
        assert (rows_of(model, [prompt], tokens, kv_dtype=kv_dtype)[0] == rows).all()


def test_what_was_read_stays_through_a_rollback(made):
    s, model, _ = made
    tokens = t5.text(s)[:9].tolist()
    cross = link(open_context(model), [])
    cross.encode({0: t5.source(s).tolist()})
    read = cross.digest(0)
    first = cross.llm.process(Batch.of(tokens, outputs="all")).logits
    cross.rollback(0, 4)
    again = cross.llm.process(Batch.of(tokens[4:], pos=4, outputs="all")).logits
    assert (first[4:] == again).all()
    cross.rollback(0, 0)
    assert cross.digest(0) == read
    cross.remove(0)
    empty = link(open_context(model), [])
    assert cross.digest(0) == empty.digest(0) != read
    with pytest.raises(mtpcore.LinkError, match="no whole sequence was delivered"):
        cross.llm.process(Batch.of(tokens))


def test_cross_rows_are_computed_once_and_kept(made, monkeypatch):
    """Keys and values of the encoder's rows: made as they are delivered, whatever is drafted."""
    s, model, _ = made
    n_rows, run = Counter(), ReferencePlan.run

    def counted(plan, batch, memory):
        for weight in {w.tensor for node in plan.program.nodes for w in node.weights if w}:
            n_rows[weight] += len(batch.tokens)
        return run(plan, batch, memory)

    monkeypatch.setattr(ReferencePlan, "run", counted)
    cross = link(open_context(model, backend="reference", n_seq_max=2), "lookup")
    cross.encode({0: t5.source(s).tolist()})
    cross.llm.process(Batch.of([0, 5, 6, 5, 6, 5]))
    for _ in range(3):
        cross.verify({0: cross.draft(0, 3, GREEDY)}, GREEDY)
        cross.accept(0, 0)
    cross.fork(0, 1)
    cross.llm.process(Batch.of([7], seq=1, pos=cross.llm.length(1)))
    for n in range(s.n_decoder_layers):
        block = f"dec.blk.{n}.cross_attn"
        assert [n_rows[f"{block}_{part}.weight"] for part in "kv"] == [s.n_source] * 2
        assert n_rows[f"{block}_q.weight"] >= 6 + 3 + 1


def test_forks_and_saved_states_go_on(made):
    s, model, _ = made
    tokens = t5.text(s)[:9].tolist()
    cross = link(open_context(model, n_seq_max=3), [])
    cross.encode({0: t5.source(s).tolist(), 2: [5, 4, 3]})
    cross.llm.process(Batch.of(tokens[:4], seq=0))
    before = cross.digest(0)
    cross.fork(0, 1)
    cross.remove(0)
    assert cross.digest(1) == before
    saved = cross.save(1)
    wanted = cross.llm.process(Batch.of(tokens[4:], seq=1, pos=4, outputs="all")).logits
    other = link(open_context(model, n_seq_max=2), [])
    other.load(1, saved)
    assert other.digest(1) == before
    found = other.llm.process(Batch.of(tokens[4:], seq=1, pos=4, outputs="all")).logits
    assert (found == wanted).all()


def test_a_sequence_whose_prompt_was_read_is_not_empty(made):
    """Nothing goes on there: that would forget the prompt, or mix it with another one."""
    s, model, refs = made
    short, long = refs["hidden"][:5], np.resize(refs["hidden"], (150, t5.WIDTH))
    cross = link(open_context(model, n_seq_max=2), [])
    cross.encode({0: t5.source(s).tolist(), 1: [5, 4, 3]})
    one = open_context(model, n_seq_max=2)
    one.receive("encoded", 0, short)
    one.receive("encoded", 1, long)
    for either in (cross, one):
        saved, before = either.save(0), [either.digest(seq) for seq in range(2)]
        for act in (lambda e=either: e.fork(0, 1), lambda e=either, s=saved: e.load(1, s)):
            with pytest.raises(mtpcore.BatchError, match="an empty sequence") as caught:
                act()
            assert caught.value.fix == "remove it first"
            assert [either.digest(seq) for seq in range(2)] == before
        either.remove(1)
        either.load(1, saved)
        assert either.digest(1) == before[0]


@pytest.mark.parametrize("prompt", [[], Prompt([5, 4, 3]), DraftTree([5], [-1])], ids=repr)
def test_an_encoder_reads_one_token_or_more(made, prompt):
    cross = link(open_context(made[1], n_seq_max=2), [])
    with pytest.raises(mtpcore.BatchError, match="one token or more") as caught:
        cross.encode({0: [1, 2], 1: prompt})
    assert caught.value.where == "sequence 1"
    assert [cross.contexts["encoder"].length(seq) for seq in range(2)] == [0, 0]


def test_an_act_that_fails_takes_the_encoder_back(made):
    _, model, _ = made
    cross = link(open_context(model, n_seq_max=2), [])
    cross.encode({0: [5, 4, 3]})
    before = [cross.digest(seq) for seq in range(2)]
    with pytest.raises(mtpcore.BatchError, match="no such token"):
        cross.encode({1: [3, t5.N_VOCAB]})
    with pytest.raises(mtpcore.BatchError, match="has a prompt already") as caught:
        cross.encode({1: [1, 2], 0: [3]})
    assert caught.value.fix == "remove it first"
    encoder = cross.contexts["encoder"]
    with pytest.raises(mtpcore.LinkError, match="delivered at once"):
        encoder.process(Batch.of([3], pos=3))
    with pytest.raises(mtpcore.BatchError, match="outside the context"):
        cross.encode({1: [1] * 193})
    assert [cross.digest(seq) for seq in range(2)] == before
    cross.llm.process(Batch.of([0]))
    with pytest.raises(mtpcore.LinkError, match="begun with other rows"):
        cross.feed("encoder", "hidden", 0, 0, np.zeros((3, t5.WIDTH), np.float32))


def test_rows_may_come_from_outside(made):
    """A context that is not linked is given the encoder's rows."""
    s, model, refs = made
    tokens = t5.text(s)[:6]
    context = open_context(model)
    with pytest.raises(mtpcore.LinkError, match="no whole sequence was delivered"):
        context.process(Batch.of(tokens))
    context.receive("encoded", 0, refs["hidden"][:7])
    other = context.digest(0)
    context.receive("encoded", 0, refs["hidden"])
    assert context.digest(0) != other
    out = context.process(Batch.of(tokens, outputs="all"))
    assert np.abs(out.logits - refs["logits"][:6]).max() < CLOSE
    for slot, rows, error in (
        ("encoded", np.zeros((3, 5)), "do not fit"),
        ("encoded", np.full((3, t5.WIDTH), np.nan), "finite"),
        ("hidden", np.zeros((3, t5.WIDTH)), "no slot"),
        ("encoded", np.zeros((3, t5.WIDTH)), "begun with other rows"),
    ):
        with pytest.raises(mtpcore.MtpcoreError, match=error):
            context.receive(slot, 0, rows)


def test_an_encoder_reads_tokens_alone(tmp_path):
    """Even where the decoder has an input for other rows."""

    def decoder(g, inputs, h):
        g.embed = partial(g.embed, embeddings=True)
        return T5.build(g, inputs, h)

    s = t5.SHAPES["1.1"]
    plugin = ModuleType("mtpcore_both")
    both = msgspec.structs.replace(T5, build=decoder)
    plugin.mtpcore_models = hookimpl(lambda: [both])
    model = load_model(write(tmp_path, s), plugins=Registry.of(plugin))
    generator = Generator(open_context(model), sampling=GREEDY)
    prompt = Prompt(t5.source(s), Rows(np.zeros((2, t5.WIDTH), np.float32)))
    with pytest.raises(mtpcore.BatchError, match="reads no such rows"):
        generator.add(prompt)
    text, again = (
        list(generator.generate(given, max_tokens=5, ignore_eos=True))
        for given in (t5.source(s), Prompt(t5.source(s)))
    )
    assert text == again


def test_a_sequence_is_read_in_one_piece(made):
    s, model, _ = made
    encoder = open_context(model, graph_type="encoder", n_batch=32, n_seq_max=3)
    tokens = np.resize(t5.source(s), 72)
    with pytest.raises(mtpcore.BatchError, match="run in one piece"):
        encoder.process(Batch.of(tokens[:33]))
    seq = np.repeat([0, 1, 2], [20, 20, 32])
    both = encoder.process(Batch(tokens, seq=seq, outputs="none"))
    alone = open_context(model, graph_type="encoder")
    again = alone.process(Batch.of(tokens[20:40], outputs="none"))
    assert (both.tap("hidden")[20:40] == again.tap("hidden")).all()


# Text, files, and what the core promises of every family


PROMPT = "translate English to German: That is good."


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A model file with a tokenizer of SentencePiece's."""
    folder = tmp_path_factory.mktemp("spoken")
    s = t5.SHAPES["1.1"]._replace(n_vocab=160)
    hf = write_checkpoint(folder / "hf", t5.configuration(s), t5.weights(s))
    (hf / "tokenizer.json").unlink()
    pieces = lzma.decompress((DATA / "unigram" / "t5.model.xz").read_bytes())
    (hf / "spiece.model").write_bytes(pieces)
    convert(hf, folder / "model.gguf", outtype="q8_0")
    return folder / "model.gguf"


def test_lm_and_command_line(spoken, capsys):
    options = {"max_tokens": 20, "seed": 4, "ignore_eos": True}
    with LM(spoken, n_seq_max=2) as lm:
        one = lm.generate(PROMPT, **options)
        tokens = lm.model.tokenizer.encode(PROMPT)
        assert tokens[-1] == lm.model.tokenizer.eos
        assert one.stats.prompt_tokens == len(tokens)
        assert lm.generate(tokens, **options).text == one.text
        others = lm.generate([PROMPT, "the cat", PROMPT], **options)
        assert others[0].text == others[2].text == one.text != others[1].text
        assert "".join(lm.stream(PROMPT, **options)) == one.text
        spelt = {token: lm.model.tokenizer.token_bytes(token) for token in tokens}
        first = next(token for token, text in spelt.items() if len(text) > 1 and text[0] == 32)
        begun = lm.generate(PROMPT, max_tokens=1, logit_bias={first: 1000.0}).text
        assert begun == lm.model.tokenizer.decode([first]) == spelt[first].decode()[1:]
        llm = lm.generator.cross.llm
        assert [llm.length(seq) for seq in range(2)] == [0, 0], "texts that nothing could share"
    write = ["run", str(spoken), "-n", "20", "--seed", "4", "--ignore-eos"]
    assert main([*write, "-p", PROMPT]) == 0
    assert capsys.readouterr().out.rstrip("\n") == one.text.rstrip("\n")
    assert main([*write, "--prompt-tokens", ",".join(map(str, tokens)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["prompt_tokens"]) == (one.text, tokens)
    assert main(["bench", str(spoken), "-p", PROMPT, "-n", "4", "--repetitions", "1"]) == 0


def test_prompt_that_does_not_fit(spoken):
    with LM(spoken, n_ctx=16) as lm:
        with pytest.raises(mtpcore.CapacityError, match="longer than the context"):
            lm.generate([5] * 17)
        full = {"ignore_eos": True, "seed": 2}
        assert len(lm.generate([5] * 16, max_tokens=99, **full).tokens) == 16
        shifted = lm.generate([5] * 16, max_tokens=40, when_full="shift", **full)
        assert len(shifted.tokens) == 40


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_bits_are_the_definitions(spoken, kv_dtype, threads):
    assert check_graphs(Subject("t5", str(spoken)), kv_dtype=kv_dtype, threads=threads) > 100


def rewritten(path, to, drop=(), **more):
    """Write a file again with some metadata dropped or added, and tensors by name."""
    with open_model_file(path) as file:
        metadata = {name: v for name, v in file.metadata.items() if name not in drop}
        arrays = {name: tensor.array() for name, tensor in file.tensors.items()}
        write_model_file(to, "t5", metadata, arrays | more)
    return to


def test_tied_models_scale_their_last_state(tmp_path):
    """Files of llama.cpp's converter do not say so; it is known by the tie, or by a copy."""
    s = t5.SHAPES["1.0"]
    path = write(tmp_path, s)
    scale = t5.WIDTH**-0.5
    with load_model(path) as model:
        assert model.metadata["t5.logit_scale"] == pytest.approx(scale)
        assert "output.weight" not in model.tensors
        table = model.tensors["token_embd.weight"].array().copy()
        wanted = rows_of(model, [[3, 4]], [0, 5])
    silent = rewritten(path, tmp_path / "silent.gguf", drop=["t5.logit_scale"])
    copied = rewritten(silent, tmp_path / "copied.gguf", **{"output.weight": table})
    other = rewritten(silent, tmp_path / "other.gguf", **{"output.weight": table + 1})
    for file, factor in ((silent, scale), (copied, scale), (other, 1)):
        with load_model(file) as model:
            assert model.hparams.logit_scale == pytest.approx(factor)
            if file is not other:
                assert (rows_of(model, [[3, 4]], [0, 5]) == wanted).all()


def test_a_copy_of_the_table_is_known_by_its_first_bytes():
    """So that loading reads neither matrix: they are the largest of the file."""
    n_bytes, first = 1 << 22, 1 << 16
    raw = np.arange(n_bytes, dtype=np.uint32).view(np.uint8).reshape(-1, 64)
    table = SimpleNamespace(type=0, shape=(1 << 18, 16), raw=lambda: raw)
    for at, is_copy in ((first - 1, False), (first, True)):
        changed = raw.copy()
        changed.reshape(-1)[at] += 1
        output = SimpleNamespace(type=0, shape=table.shape, raw=lambda changed=changed: changed)
        assert is_tied({"token_embd.weight": table, "output.weight": output}) == is_copy


def test_configurations(tmp_path):
    """Of transformers 5; with the table under another name; of what the graphs do not compute."""
    s = t5.SHAPES["1.0"]
    config, tensors = t5.configuration(s), t5.weights(s)
    five = config | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    renamed = dict(tensors)
    renamed["encoder.embed_tokens.weight"] = renamed.pop("shared.weight")
    unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    renamed[unused] = np.zeros((32, 4), np.float32)
    hf = write_checkpoint(tmp_path / "hf", five, renamed, tokenizer(t5.N_VOCAB))
    left_out = convert(hf, tmp_path / "five.gguf", outtype="f32")
    assert unused in left_out
    with load_model(tmp_path / "five.gguf") as model:
        assert model.hparams.logit_scale == 1
        assert model.hparams.n_layers == 3
    both = tensors | {"encoder.embed_tokens.weight": tensors["shared.weight"]}
    both["lm_head.weight"] = tensors["shared.weight"]
    hf = write_checkpoint(tmp_path / "both", config, both, tokenizer(t5.N_VOCAB))
    assert len(convert(hf, tmp_path / "both.gguf", outtype="f32")) == 2
    hf = write_checkpoint(
        tmp_path / "ul2", config | {"feed_forward_proj": "gated-silu"}, tensors, tokenizer(48)
    )
    with pytest.raises(mtpcore.ModelFileError, match="gated-silu"):
        convert(hf, tmp_path / "ul2.gguf")


def test_checkpoints_before_transformers_4(tmp_path):
    """Their class has another name, and their configuration lacks what came with T5 1.1."""
    s = t5.SHAPES["1.0"]
    later = ("relative_attention_max_distance", "feed_forward_proj", "tie_word_embeddings")
    config = {name: value for name, value in t5.configuration(s).items() if name not in later}
    config["architectures"] = ["T5WithLMHeadModel"]
    hf = write_checkpoint(tmp_path / "hf", config, t5.weights(s), tokenizer(t5.N_VOCAB))
    convert(hf, tmp_path / "old.gguf", outtype="f32")
    refs = references("1.0")
    with load_model(tmp_path / "old.gguf") as model:
        cross = link(open_context(model, n_batch=16))
        read = cross.contexts["encoder"].process(Batch.of(t5.source(s), outputs="none"))
        assert np.abs(read.tap("hidden") - refs["hidden"]).max() < CLOSE
        out = cross.llm.process(Batch.of(t5.text(s), outputs="all"))
        assert np.abs(out.logits - refs["logits"]).max() < CLOSE


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_position_biases_are_where_the_family_has_them(tmp_path, stack):
    """Every layer of UMT5, and the first one of T5: others would be used, or left out, unseen."""
    bias = f"{stack}.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
    for name in ("1.1", "UMT5"):
        s = t5.SHAPES[name]
        tensors = t5.weights(s)
        if s.own_biases:
            del tensors[bias]
        else:
            tensors[bias] = np.zeros((s.n_buckets, t5.N_HEADS), np.float32)
        hf = write_checkpoint(tmp_path / name, t5.configuration(s), tensors, tokenizer(t5.N_VOCAB))
        with pytest.raises(mtpcore.ModelFileError, match="not those of the declarations") as error:
            convert(hf, tmp_path / "model.gguf")
        assert bias in (error.value.wanted if s.own_biases else error.value.got)


def test_metadata_that_does_not_fit(tmp_path, spoken):
    for changed, message in (
        ({"t5.decoder_start_token_id": 160}, "no such token"),
        ({"t5.embedding_length": 25}, "another width"),
        ({"t5.attention.relative_max_distance": 3}, "distances"),
    ):
        path = tmp_path / "broken.gguf"
        with open_model_file(spoken) as file:
            arrays = {name: tensor.array() for name, tensor in file.tensors.items()}
            write_model_file(path, "t5", file.metadata | changed, arrays)
        with pytest.raises(mtpcore.MtpcoreError, match=message), load_model(path) as model:
            link(Context(model, 16))


def test_inspect_and_quantize(spoken, tmp_path, capsys):
    assert main(["inspect", str(spoken), "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["plan"]["parts"]
    assert [part["role"] for part in parts] == ["llm", "encoder"]
    width = 2 * t5.N_HEADS * t5.HEAD_WIDTH * 2  # bytes of a key and a value in f16
    s = t5.SHAPES["1.1"]
    assert [part["kv_per_token"] for part in parts] == [
        2 * s.n_decoder_layers * width,
        s.n_layers * width,
    ]
    assert main(["inspect", str(spoken), "--graph", "llm", "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.count("kept") == s.n_decoder_layers
    assert main(["inspect", str(spoken), "--graph", "encoder"]) == 0
    assert "mask='block'" in capsys.readouterr().out
    small = tmp_path / "small.gguf"
    assert main(["quantize", str(spoken), str(small), "--outtype", "q4_0"]) == 0
    with LM(small) as lm:
        assert len(lm.generate(PROMPT, max_tokens=3, ignore_eos=True).tokens) == 3
        kept = lm.model.tensors["enc.blk.0.attn_rel_b.weight"]
        assert kept.type_name == "F32"


def test_embeddings_are_of_the_encoders_rows(made):
    s, model, refs = made
    tokens = t5.source(s).tolist()
    with LM(model, n_ctx=192, kv_dtype="f32", threads=1) as lm:
        rows = lm.embed(tokens, pooling="none")
        assert np.allclose(rows, refs["hidden"], atol=CLOSE)
        mean = refs["hidden"].mean(0)
        assert np.allclose(lm.embed(tokens), mean / np.linalg.norm(mean), atol=CLOSE)
