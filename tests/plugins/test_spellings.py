"""What model files may spell in several ways, in every family: each way is the same model."""

import contextlib

import numpy as np
import pytest
from harness.every_trunk import FAMILIES, write_trunk
from harness.generated import write_generated
from harness.generated_heads import DRAFTERS, write_drafter

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.gguf import open_model_file, write_model_file

PROMPT = np.arange(1, 9)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return the files of a family's model, or of a model and its drafter, as we write them."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in DRAFTERS:
                trunk = folder / "trunk.gguf"
                write_generated(trunk, "llama", "F32")
                made[name] = [trunk, write_drafter(folder / f"{name}.gguf", name, "F32")]
            else:
                trunk = write_trunk(folder, name)
                made[name] = [trunk, *sorted(folder.glob("mmproj-*.gguf"))]
        return made[name]

    return make


def rewrite(paths, folder, *, metadata=lambda values, arch: values, axes=lambda shape: shape):
    """Write files again, their metadata and the axes of their tensors in another spelling."""
    for path in paths:
        with open_model_file(path) as file:
            tensors = {
                name: t.raw().reshape(axes(t.raw().shape)) for name, t in file.tensors.items()
            }
            types = {name: t.type for name, t in file.tensors.items()}
            metadata_of = metadata(dict(file.metadata), file.architecture)
            write_model_file(folder / path.name, file.architecture, metadata_of, tensors, types)
    return [folder / path.name for path in paths]


def outputs(paths):
    """Return logits of a prompt, and what is drafted behind it where something drafts."""
    *beside, path = [path for path in reversed(paths) if not path.name.startswith("mmproj-")]
    with contextlib.ExitStack() as stack:
        model, *heads = [stack.enter_context(load_model(one)) for one in (path, *beside)]
        cross = link(Context(model, 64, kv_dtype="f32", threads=1), draft_model=(*heads, None)[0])
        if "encoder" in cross.contexts:
            cross.encode({0: PROMPT})
        logits = cross.llm.process(Batch.of(PROMPT, outputs="all")).logits.copy()
        drafts = cross.draft(0, 3, Sampling.greedy()) if cross.drafters else []
    return logits, np.array(drafts)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", [*FAMILIES, *DRAFTERS])
def test_axes_of_1(name, original, tmp_path):
    """Other programs write none at all, or as many as they like."""
    paths = original(name)
    for n in (0, 4):
        folder = tmp_path / str(n)
        folder.mkdir()
        spelled = rewrite(paths, folder, axes=lambda shape, n=n: (*(1,) * (n - len(shape)), *shape))
        assert_same(outputs(spelled), outputs(paths))
