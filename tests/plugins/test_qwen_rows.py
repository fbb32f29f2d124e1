"""Drafts after an image: small random hybrids against transformers, and all that acts do there."""

import numpy as np
import pytest
from harness import qwen
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint

from mtpcore import (
    Batch,
    BatchError,
    CapacityError,
    Context,
    Generator,
    Image,
    Prompt,
    Proposer,
    Sampling,
    link,
    load_model,
)
from mtpcore.conversion import convert

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
CLOSE = 2e-4
TOKENS = qwen.tokens().tolist()
PROMPT = Prompt(TOKENS[:4], Image(qwen.image(), nx=3, ny=2), TOKENS[10:])
SAMPLED = Sampling(temperature=1.1, seed=5)


@pytest.fixture(scope="module", params=qwen.WITH_ROWS)
def made(request, tmp_path_factory):
    """Return a model in float32, and its references."""
    s, folder = qwen.SHAPES[request.param], tmp_path_factory.mktemp("qwen")
    tensors = qwen.published(s, qwen.weights(s))
    write_checkpoint(folder / "hf", qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    with np.load(DATA / "qwen" / "rows.npz") as file:
        refs = {
            name.partition("/")[2]: file[name] for name in file if name.startswith(request.param)
        }
    with load_model(folder / "model.gguf") as model:
        yield model, refs


def open_context(model, backend="cpu", **settings):
    sizes = {"kv_dtype": "f32", "threads": 1, "backend": backend, **settings}
    return Context(model, 64, **sizes)


def read(cross, prompt=PROMPT, seq=0, **options):
    return cross.llm.process(prompt.batch(seq=seq, n_axes=4, **options))


def test_the_positions_are_those_of_the_reference():
    assert np.array_equal(PROMPT.positions[:, :3].T, qwen.positions())


@backends
def test_trunk_and_head(made, backend):
    model, refs = made
    context = open_context(model, backend, taps=["hidden"])
    out = context.process(PROMPT.batch(n_axes=4, outputs="all"))
    assert np.abs(out.logits - refs["logits"]).max() < CLOSE
    assert np.abs(out.tap("hidden") - refs["hidden"]).max() < CLOSE
    assert context.next_position(0) == len(PROMPT) - 3
    head = open_context(model, backend, graph_type="draft", drafter="qwen_mtp")
    batch = Batch(
        PROMPT.tokens[1:],
        embeddings=PROMPT.embeddings[1:],
        pos=PROMPT.positions[1:],
        place=1,
        slots={"hidden": refs["hidden"][:-1]},
        outputs="all",
    )
    out = head.process(batch)
    assert np.abs(out.logits - refs["head_logits"]).max() < CLOSE
    assert np.abs(out.tap("hidden") - refs["head_hidden"]).max() < CLOSE
    assert head.next_position(0) == context.next_position(0)


def drafts_of(cross, n, k=3, seq=0):
    """Return the greedy text of n tokens, and the drafts after each but the last."""
    text, drafts = [cross.pending(seq, Sampling.greedy())], []
    while len(text) < n:
        drafts.append(cross.draft(seq, k))
        text.append(cross.verify({seq: []})[seq].next_token)
        cross.accept(seq)
    return text, drafts


@backends
def test_text_and_drafts(made, backend):
    """The head reads the image's rows, and drafts as transformers' modules do."""
    model, refs = made
    cross = link(open_context(model, backend))
    read(cross)
    text, drafts = drafts_of(cross, len(refs["text"]))
    assert text == refs["text"].tolist()
    assert drafts == refs["drafts"].tolist()
    assert cross.paused == 0
    assert cross.speculation.states[0].rows.end == 0  # what was read is not kept


def test_an_image_in_pieces_and_at_the_beginning(made):
    """Rows one by one, and a prompt that begins with an image: its first row has no entry."""
    model, refs = made
    cross = link(open_context(model, n_batch=3))
    for at in range(len(PROMPT)):
        cross.llm.process(PROMPT.part(at, at + 1).batch(place=at, n_axes=4))
        if at % 5 == 4:
            cross.digest(0)  # the head reads what there is
    assert drafts_of(cross, len(refs["text"]))[1] == refs["drafts"].tolist()
    prompt, found = Prompt(Image(qwen.image(), nx=3, ny=2), TOKENS[:3]), []
    for n_batch in (2, 64):
        cross = link(open_context(model, n_batch=n_batch))
        read(cross, prompt)
        found.append(drafts_of(cross, 6))
    assert found[0] == found[1]
    assert cross.paused == 0


def test_a_second_image_later(made):
    """Positions go on after the text; drafts before and after are those of one prompt."""
    model, _ = made
    later = [5], Image(qwen.image()[::-1], nx=2, ny=3), [6, 7]
    more = Prompt(*later)
    whole = Prompt(TOKENS[:4], Image(qwen.image(), nx=3, ny=2), TOKENS[10:], *later)
    one, two = (link(open_context(model)) for _ in range(2))
    read(one, whole)
    read(two)
    two.draft(0, 2)  # a draft of a text that goes on otherwise
    read(two, more, place=two.llm.length(0), start=two.llm.next_position(0))
    assert one.digest(0) == two.digest(0)
    assert drafts_of(one, 6) == drafts_of(two, 6)


def test_rollback_fork_save_and_load(made, tmp_path):
    model, refs = made
    wanted = refs["drafts"].tolist()
    cross = link(open_context(model, n_seq_max=3))
    read(cross)
    cross.fork(0, 1)  # before the head has read anything
    cross.save(0, tmp_path / "state")
    assert drafts_of(cross, len(wanted) + 1)[1] == wanted
    assert drafts_of(cross, len(wanted) + 1, seq=1)[1] == wanted
    cross.load(2, tmp_path / "state")
    assert drafts_of(cross, len(wanted) + 1, seq=2)[1] == wanted
    fresh = link(open_context(model))
    fresh.load(0, tmp_path / "state")
    assert drafts_of(fresh, len(wanted) + 1)[1] == wanted
    place = len(PROMPT) + 1
    cross.rollback(0, place)
    cross.llm.process(Batch([refs["text"][1]], pos=place))
    assert drafts_of(cross, len(wanted) - 1)[1] == wanted[2:]


def test_what_cannot_be_read_again_is_not_forgotten(made):
    """Recurrent layers without a state of that place, and rows that are not kept."""
    model, _ = made
    cross = link(open_context(model, checkpoint_bytes=0))
    read(cross)
    drafts_of(cross, 12)
    digest, length = cross.digest(0), cross.llm.length(0)
    with pytest.raises(CapacityError):
        cross.rollback(0, 6)
    assert (cross.digest(0), cross.llm.length(0)) == (digest, length)


def test_tokens_keep_positions_of_their_own(made):
    """What is processed again for recurrent layers stands where it was put, not after the text."""
    model, _ = made
    places = np.arange(40)
    own = np.repeat((places + 7 * (places >= 15))[:, None], 4, axis=1)
    own[20:30, 1] -= 3

    def read_tokens(n):
        cross = link(open_context(model, checkpoint_bytes=0))
        cross.llm.process(Batch(places[:n] % 9, pos=own[:n]))
        return cross

    cross = read_tokens(40)
    fresh = link(open_context(model))
    fresh.load(0, cross.save(0))
    for one in (cross, fresh):
        for n in (33, 20, 17):  # the second of them is before the newest state
            one.rollback(0, n)
            assert one.digest(0) == read_tokens(n).digest(0)
            assert one.llm.next_position(0) == n + 7
        digest = one.digest(0)
        with pytest.raises(BatchError, match="tokens at own positions"):
            one.shift(0, keep=2, drop=2)
        assert one.digest(0) == digest
        one.llm.process(Batch.of([1, 2, 3], pos=17))
        one.shift(0, keep=17, drop=1)  # what remains is text
        assert one.llm.next_position(0) == 19 + 7


def test_a_row_whose_logits_are_wanted_again_stands_where_it_stood(made):
    """Where all after it is dropped it is read once more: text is, and nothing else."""
    model, _ = made
    text, own = np.arange(5), np.repeat([[20], [22], [21], [25], [30]], 4, axis=1)
    first, after = Batch.of(text), Batch(text + 5, pos=own)
    cross, fresh = (link(open_context(model)) for _ in range(2))
    for cross_or_fresh in (cross, fresh):
        cross_or_fresh.llm.process(first)
    cross.llm.process(after)
    cross.shift(0, keep=5, drop=5)
    assert cross.digest(0) == fresh.digest(0)
    assert cross.pending(0, SAMPLED) == fresh.pending(0, SAMPLED)
    cross.remove(0)
    cross.llm.process(after)
    cross.llm.process(Batch.of(text, pos=5))
    digest = cross.digest(0)
    with pytest.raises(BatchError, match="tokens at own positions"):
        cross.shift(0, keep=5, drop=5)
    assert cross.digest(0) == digest


def test_a_draft_model_beside_a_head_reads_tokens_alone(made):
    """As the text that they are, also where the head reads them at positions of their own."""
    model, _ = made
    places = np.arange(20)
    own = np.repeat((places + 7 * (places >= 15))[:, None], 4, axis=1)
    with load_model(model.path) as draft_model:

        def read_tokens():
            roles = ["qwen_mtp", "draft_model"]
            cross = link(open_context(model), roles, draft_model=draft_model)
            cross.llm.process(Batch(places % 9, pos=own))
            return cross

        cross = read_tokens()
        assert len(cross.draft(0, 3, SAMPLED, drafters=["draft_model"])) == 3
        assert cross.digest(0) == read_tokens().digest(0)


def generate(model, prompts, sampling, draft, n_batch=64, n_tokens=12, **options):
    cross = link(open_context(model, n_seq_max=2, n_batch=n_batch))
    generator = Generator(cross, sampling=sampling, draft=draft, **options)
    requests = [generator.add(prompt, max_tokens=n_tokens, ignore_eos=True) for prompt in prompts]
    while generator.active:
        generator.step()
    return [request.tokens for request in requests], generator.stats


def test_generate(made):
    model, refs = made
    n = len(refs["text"])
    (text, _), stats = generate(model, [PROMPT, [1, 2]], Sampling.greedy(), 3, n_tokens=n)
    assert text == refs["text"].tolist()
    assert stats.drafted > 0
    assert stats.paused == 0
    tokens = Generator(link(open_context(model))).generate(
        PROMPT, max_tokens=n, sampling=Sampling.greedy(), draft=2
    )
    assert list(tokens) == text


@pytest.mark.parametrize("sampling", [Sampling.greedy(), SAMPLED])
def test_drafts_change_no_token(made, sampling):
    """With and without drafts, in chunks of any size, beside texts and other images."""
    model, _ = made
    prompts = [PROMPT, TOKENS[:9], Prompt(Image(qwen.image(), nx=2, ny=3), [3])]
    plain, _ = generate(model, prompts, sampling, 0)
    for draft, n_batch in ((1, 64), (3, 5), (4, 2)):
        made_texts, stats = generate(model, prompts, sampling, draft, n_batch)
        assert made_texts == plain
        assert stats.drafted > 0


def test_the_prefix_cache_ends_before_an_image(made):
    model, _ = made
    long = Prompt(TOKENS[:4] * 5, Image(qwen.image(), nx=3, ny=2), TOKENS[10:])
    other = Prompt(TOKENS[:4] * 5, Image(-9 * qwen.image(), nx=3, ny=2), TOKENS[10:])
    apart = [generate(model, [prompt], SAMPLED, 2)[0][0] for prompt in (long, other)]
    cross = link(open_context(model, n_seq_max=3))
    generator = Generator(cross, sampling=SAMPLED, draft=2, prefix_cache="all")
    for prompt, text in zip((long, other, long), (*apart, apart[0]), strict=True):
        request = generator.add(prompt, max_tokens=12, ignore_eos=True)
        while generator.active:
            generator.step()
        assert request.tokens == text
        assert request.n_cached <= 20
    logits = [open_context(model).process(p.batch(n_axes=4)).logits for p in (long, other)]
    assert np.abs(logits[0] - logits[1]).max() > 0.01


def test_equal_prompts_share_what_comes_before_an_image(made):
    """The second one waits for that, and for no more."""
    model, _ = made
    prompt = Prompt(TOKENS[:10] * 7, Image(qwen.image(), nx=3, ny=2), TOKENS[10:])
    context = Context(model, 128, n_seq_max=2, n_batch=32, threads=1)
    generator = Generator(link(context), sampling=SAMPLED, prefix_cache="all")
    one, two = (generator.add(prompt, max_tokens=4, ignore_eos=True) for _ in range(2))
    while generator.active:
        generator.step()
    assert one.tokens == two.tokens
    assert one.stops == {69}
    assert two.n_cached == 69


class Guess(Proposer):
    def propose(self, seq, tokens, k):
        return [1] * k


def test_what_cannot_follow_pauses_visibly(made, caplog):
    model, refs = made
    cross = link(open_context(model), Guess())
    read(cross)
    assert drafts_of(cross, 4)[1] == [[]] * 3
    assert cross.paused == 3
    assert "holds no token" in caplog.text
    both = link(open_context(model), [Guess(), "qwen_mtp"])
    read(both)
    assert drafts_of(both, 4)[1] == refs["drafts"][:3].tolist()
    assert both.paused == 0


def test_mistakes(made):
    model, _ = made
    cross = link(open_context(model))
    generator = Generator(cross, draft=2)
    with pytest.raises(BatchError, match="cannot be shifted"):
        generator.add(PROMPT, when_full="shift")
    for bad in (
        Prompt([1], Image(np.zeros((1, qwen.WIDTH + 1)), nx=1, ny=1)),
        Prompt([1], Image(np.full((1, qwen.WIDTH), np.nan), nx=1, ny=1)),
    ):
        with pytest.raises(BatchError):
            generator.add(bad)
    with pytest.raises(CapacityError):
        generator.add(Prompt(Image(np.zeros((65, qwen.WIDTH)), nx=65, ny=1)))
    with pytest.raises(BatchError, match="does not continue"):
        cross.llm.process(Batch([1], pos=[[0] * 4], place=3))
    with pytest.raises(BatchError):
        Batch([1], place=-1)
    assert cross.llm.length(0) == 0
