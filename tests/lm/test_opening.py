"""What an LM is made of: a model by path or name, its drafter, and sensible sizes."""

import logging
import shutil
import struct

import pytest

import mtpcore
from mtpcore import LM, Context, Generator, Link, LinkError, ModelFileError, link, load_model
from mtpcore.discovery.loading import find_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.lm import default_n_ctx

OPTIONS = {"max_tokens": 12, "seed": 3}
PROMPT = "def read_config(path):"


def write_part(path, wanted, **changed):
    """Write a file with some of the demo's tensors, and changed metadata."""
    with open_model_file(find_model("demo")) as file:
        tensors = {name: one for name, one in file.tensors.items() if wanted(name)}
        raw = {name: one.raw() for name, one in tensors.items()}
        types = {name: one.type for name, one in tensors.items()}
        write_model_file(path, file.architecture, file.metadata | changed, raw, types)


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    """The demo's trunk alone, and its head in another folder."""
    n = load_model("demo").hparams.n_layers
    folder = tmp_path_factory.mktemp("trunk")
    shared = (f"blk.{n}.", "token_embd.", "output.", "output_norm.")
    counts = {"glm4moe.block_count": n, "glm4moe.nextn_predict_layers": 0}
    write_part(folder / "m.gguf", lambda name: not name.startswith(f"blk.{n}."), **counts)
    (folder / "head").mkdir()
    write_part(folder / "head" / "mtp-m.gguf", lambda name: name.startswith(shared))
    return folder


def test_a_path_a_model_and_a_name_are_models():
    path = find_model("demo")
    texts = set()
    with load_model("demo") as model:
        for source in ("demo", str(path), path, model):
            with LM(source, n_ctx=60) as lm:
                texts.add(lm.generate(PROMPT, **OPTIONS).text)
        LM(model, n_ctx=60)  # it is still open: only what an LM opened does it close
    assert len(texts) == 1


def test_repr_says_what_it_is():
    with LM("demo", n_ctx=60, draft=2) as lm:
        assert repr(lm) == "LM('demo.gguf', glm4moe, n_ctx=60, draft=2, drafter='glm_nextn')"
    with LM("demo", n_ctx=60, draft=0) as lm:
        assert "draft=0, drafter=None)" in repr(lm)


def test_a_budget_of_checkpoints_reaches_model_and_drafter():
    with LM("demo", n_ctx=60, draft=2, checkpoint_bytes=1 << 20) as lm:
        contexts = lm.generator.cross.contexts.values()
        assert [one.checkpoint_bytes for one in contexts] == [1 << 20] * 2
        assert lm.generate(PROMPT, **OPTIONS).text


def test_as_many_tokens_fit_as_the_model_was_trained_on():
    with LM("demo") as lm:
        assert lm.n_ctx == lm.model.hparams.n_ctx_train == 512
    model = load_model("demo")
    for trained, wanted in ((100, 100), (131072, 4096), (0, 4096)):
        model.hparams = type("Hparams", (), {"n_ctx_train": trained})
        assert default_n_ctx(model) == wanted


def test_the_drafter_of_a_model_in_the_package_is_found():
    with LM("demo:eagle3", n_ctx=60, draft=2) as lm:
        assert lm.generate(PROMPT, **OPTIONS).stats.drafted > 0
    with LM(load_model("demo:eagle3"), n_ctx=60, draft=2) as lm:
        assert lm.generate(PROMPT, **OPTIONS).stats.drafted > 0


@pytest.mark.parametrize("split", ["m.gguf", "m-00001-of-00001.gguf"])
def test_drafters_and_heads_beside_a_model_are_found(tmp_path, headless, split):
    shutil.copy(find_model("demo:eagle3"), tmp_path / split)
    with LM(tmp_path / split, n_ctx=60) as lm:
        assert "drafter='lookup'" in repr(lm)
    shutil.copy(find_model("demo:eagle3-draft"), tmp_path / "m-draft.gguf")
    with LM(tmp_path / split, n_ctx=60, draft=2) as lm:
        assert lm.generate(PROMPT, **OPTIONS).stats.drafted > 0
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(headless / "m.gguf", other / split)
    with LM(other / split, n_ctx=60) as lm:
        assert "drafter='lookup'" in repr(lm)
        wanted = lm.generate(PROMPT, **OPTIONS).text
    shutil.copy(headless / "head" / "mtp-m.gguf", other)
    with LM(other / split, n_ctx=60, draft=2) as lm:
        done = lm.generate(PROMPT, **OPTIONS)
        assert (done.text, done.stats.drafted > 0) == (wanted, True)
    with LM(other / split, n_ctx=60, draft=0) as lm:
        assert "drafter=None" in repr(lm)


@pytest.mark.parametrize("name", ["m-draft.gguf", "mtp-m.gguf"])
def test_a_damaged_file_beside_a_model_is_left_out_with_a_warning(tmp_path, headless, name, caplog):
    shutil.copy(headless / "m.gguf", tmp_path / "m.gguf")
    (tmp_path / name).write_bytes(b"GGUF" + struct.pack("<I", 77))
    with caplog.at_level(logging.WARNING, "mtpcore"), LM(tmp_path / "m.gguf", n_ctx=60) as lm:
        assert lm.generate(PROMPT, **OPTIONS).text
    assert f"{tmp_path / name} is left out" in caplog.text


def test_a_drafter_that_is_given_is_taken_or_refused(tmp_path, headless):
    with LM("demo:eagle3", draft_model="demo:eagle3-draft", n_ctx=60, draft=1) as lm:
        assert lm.generate(PROMPT, **OPTIONS).stats.drafted > 0
    with load_model("demo:eagle3-draft") as head:
        with LM("demo:eagle3", draft_model=head, n_ctx=60):
            pass
        assert head.tensors
    trunk = headless / "m.gguf"
    with pytest.raises(LinkError, match="no drafter"):
        LM(trunk, n_ctx=60, drafter="glm_nextn")
    with LM(trunk, n_ctx=60, draft=2) as lm:  # lookup does, which every model has
        assert lm.generate("x", max_tokens=9, logit_bias={9: 1e4}).stats.drafted > 0
    with pytest.raises(ModelFileError):
        LM("demo", draft_model=tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError):
        LM(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError):
        LM(3)


class Guesser(mtpcore.Proposer):
    def propose(self, seq, tokens, k):
        return [tokens[-1]] * k


def test_a_proposer_drafts():
    with LM("demo", drafter=Guesser(), n_ctx=60, draft=2) as lm:
        assert lm.generate(PROMPT, **OPTIONS).stats.drafted > 0
        assert "drafter='draft'" in repr(lm)


def test_an_auto_drafter_that_cannot_be_used_is_left_out(monkeypatch, caplog):
    def refuse(context, drafter, **options):
        if drafter:
            raise LinkError("not today")
        return link(context, drafter, **options)

    monkeypatch.setattr("mtpcore.lm.opening.link", refuse)
    with caplog.at_level(logging.WARNING, "mtpcore"), LM("demo", n_ctx=60) as lm:
        assert lm.generate(PROMPT, **OPTIONS).text
    assert "decoding without drafts" in caplog.text
    with pytest.raises(LinkError, match="not today"):
        LM("demo", n_ctx=60, draft=1)


def test_an_lm_is_made_of_a_generator():
    sampling = mtpcore.Sampling(temperature=0.9, seed=5)
    generator = Generator(link(Context(load_model("demo"), 100)), sampling=sampling, draft=2)
    with LM.of(generator) as lm:
        assert lm.generator is generator
        one = lm.generate(PROMPT, max_tokens=9)
        assert one.sampling == sampling
        other = lm.generate(PROMPT, max_tokens=9, temperature=0.1)
        assert other.sampling == mtpcore.Sampling(temperature=0.1, seed=5)
    tokens = generator.generate(load_model("demo").tokenizer.encode(PROMPT), max_tokens=9)
    assert tuple(tokens) == one.tokens  # it is the caller's, and goes on
    with pytest.raises(mtpcore.BatchError, match="takes a Generator"):
        LM.of(Link)


def test_without_a_tokenizer_token_ids_are_prompts(tmp_path):
    write_part(tmp_path / "m.gguf", lambda name: True, **{"tokenizer.ggml.model": "unknown"})
    with LM(tmp_path / "m.gguf", n_ctx=60) as lm, LM("demo", n_ctx=60) as spelled:
        with pytest.raises(mtpcore.MtpcoreError, match="no tokenizer"):
            lm.generate(PROMPT)
        ids = spelled.model.tokenizer.encode(PROMPT)
        done = lm.generate(ids, **OPTIONS)
        assert (done.text, len(done.tokens)) == ("", 12)
        pieces = list(lm.stream(ids, **OPTIONS))
        assert [piece.tokens for piece in pieces] == [(token,) for token in done.tokens]
