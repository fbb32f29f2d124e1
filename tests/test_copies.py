"""What owns files, memory or a process has no copies, and says so; all else is plain data."""

import copy
import inspect
import pickle

import msgspec
import numpy as np
import pytest

import mtpcore
from mtpcore.boundary.copies import Uncopied
from mtpcore.decoding import FrameRequest
from mtpcore.errors import CopyError
from mtpcore.gguf import ChatTemplate, JoinedTensor, TensorRows, open_model_file

ACTS = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


@pytest.fixture(scope="module")
def owners():
    """Objects by the name of their class."""
    model = mtpcore.load_model("demo")
    context = mtpcore.Context(model, n_ctx=64)
    cross = mtpcore.link(context)
    generator = mtpcore.Generator(cross)
    lm = mtpcore.LM(model, n_ctx=64)
    settings = mtpcore.Sampling(seed=1)
    made = [
        model,
        context,
        cross,
        generator,
        generator.add([5, 6]),
        FrameRequest(mtpcore.Prompt([5]), settings, settings, 3),
        lm,
        lm.stream("a"),
        lm.astream("a"),
        ChatTemplate(""),
        open_model_file(model.path),
    ]
    return {type(one).__name__: one for one in made}


NAMES = [
    "Model",
    "Context",
    "Cross",
    "Generator",
    "Request",
    "FrameRequest",
    "LM",
    "Stream",
    "AsyncStream",
    "ChatTemplate",
    "ModelFile",
]


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_refused_with_what_to_do(owners, name, act):
    with pytest.raises(TypeError, match=f"{name} is not copied") as raised:
        act(owners[name])
    assert isinstance(raised.value, CopyError)
    assert raised.value.fix
    with pytest.raises(CopyError):
        act([{"inside": owners[name]}]) if act is not copy.copy else act(owners[name])


@pytest.mark.parametrize("act", [copy.deepcopy, pickle.dumps])
def test_tensors_are_not_copied_as_they_are_in_a_file(owners, act):
    whole, other, *_ = owners["ModelFile"].tensors.values()
    for tensor in (whole, JoinedTensor("joined", [whole, other]), TensorRows("two", whole, [0, 1])):
        with pytest.raises(CopyError, match=r"tensor\.array\(\)"):
            act(tensor)


@pytest.fixture(scope="module")
def plain():
    """Objects that are data, by the name of their class."""
    model = mtpcore.load_model("demo")
    cross = mtpcore.link(mtpcore.Context(model, n_ctx=64))
    output = cross.llm.process(mtpcore.Batch.of([5, 6, 7]))
    verdicts = cross.verify({0: cross.draft(0, 2)})
    with mtpcore.LM(model, n_ctx=64) as lm:
        piece = next(iter(lm.stream("a", max_tokens=3)))
    rows, codes = np.ones((6, 8), np.float32), mtpcore.Codes(np.ones((2, 3), np.int32))
    image = mtpcore.Image(rows, nx=3, ny=2)
    made = [
        codes,
        image,
        mtpcore.Audio(rows),
        mtpcore.Batch.of([1, 2]),
        mtpcore.DraftTree([7, 9], [-1, 0]),
        mtpcore.DraftVocabulary.of_tokens(model, [5, 6]),
        mtpcore.Lookup(),
        mtpcore.LookupTexts.of_texts(model, "a text"),
        mtpcore.GraphType.LLM,
        mtpcore.Prompt([1, 2], image),
        mtpcore.PureProcessor(len),
        mtpcore.Rows(rows),
        mtpcore.Video(rows, nt=2, nx=3, ny=1),
        model.tokenizer,
        model.tokenizer.stream(),
        output,
        piece,
        verdicts,
        verdicts[0],
    ]
    return {type(one).__name__: one for one in made}


PLAIN = (
    "Codes Image Audio Batch DraftTree DraftVocabulary GraphType Lookup LookupTexts Prompt "
    "PureProcessor Rows Video Tokenizer TextStream Output Piece Verdicts Verdict"
)


def parts(one):
    """Return an object's attributes, with arrays as what they hold and whether that can change."""
    names = {*getattr(one, "__dict__", ())}
    for kind in type(one).__mro__:
        slots = getattr(kind, "__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    held = {name: getattr(one, name) for name in names if hasattr(one, name)}
    return {
        name: (value.tolist(), value.flags.writeable)
        for name, value in held.items()
        if isinstance(value, np.ndarray)
    }


@pytest.mark.parametrize("act", ACTS, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", PLAIN.split())
def test_data_is_copied(plain, name, act):
    one = plain[name]
    copied = act(one)
    assert type(copied) is type(one)
    assert parts(copied) == parts(one)
    if type(one).__eq__ is not object.__eq__:
        assert copied == one


@pytest.mark.parametrize("act", ACTS, ids=["copy", "deepcopy", "pickle"])
def test_a_copied_tokenizer_goes_on_alone(plain, act):
    """With a lock of its own, which a fork renews."""
    one = plain["Tokenizer"]
    ids = one.encode("def f(é):\n")
    copied = act(one)
    assert copied.encode("def f(é):\n") == ids
    assert copied.decode(ids) == one.decode(ids)
    assert copied._lock is not one._lock


def test_every_public_class_is_here():
    """Structs and exceptions are data by their making; protocols are what others derive from."""
    found = [
        kind
        for module in (mtpcore, mtpcore.gguf)
        for kind in map(vars(module).get, module.__all__)
        if inspect.isclass(kind)
        and not issubclass(kind, (Uncopied, msgspec.Struct, BaseException))
        and not getattr(kind, "_is_protocol", False)
    ]
    others = {"Header", "TensorInfo", "Tensor", "JoinedTensor", "TensorRows", "Fields"}
    assert {kind.__name__ for kind in found} <= {*PLAIN.split()} | others


def test_results_and_settings_are_plain_data():
    with mtpcore.LM("demo", n_ctx=64) as lm:
        completion = lm.generate("a", max_tokens=3, seed=1, logprobs=1)
    for copied in (copy.deepcopy(completion), pickle.loads(pickle.dumps(completion))):
        assert copied == completion
