"""What owns files, memory or a process has no copies, and says so."""

import copy
import pickle

import pytest

import mtpcore
from mtpcore.errors import CopyError
from mtpcore.gguf import ChatTemplate, open_model_file


@pytest.fixture(scope="module")
def owners():
    """Objects by the name of their class."""
    model = mtpcore.load_model("demo")
    context = mtpcore.Context(model, n_ctx=64)
    cross = mtpcore.link(context)
    lm = mtpcore.LM(model, n_ctx=64)
    made = [
        model,
        context,
        cross,
        mtpcore.Generator(cross),
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
    "LM",
    "Stream",
    "AsyncStream",
    "ChatTemplate",
    "ModelFile",
]


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_refused_with_what_to_do(owners, name, act):
    with pytest.raises(TypeError, match=f"a {name} is not copied") as raised:
        act(owners[name])
    assert isinstance(raised.value, CopyError)
    assert raised.value.fix
    with pytest.raises(CopyError):
        act([{"inside": owners[name]}]) if act is not copy.copy else act(owners[name])


def test_results_and_settings_are_plain_data():
    with mtpcore.LM("demo", n_ctx=64) as lm:
        completion = lm.generate("a", max_tokens=3, seed=1, logprobs=1)
    for copied in (copy.deepcopy(completion), pickle.loads(pickle.dumps(completion))):
        assert copied == completion
