"""Folders of adapters that are damaged become files or are refused, and leave nothing behind."""

import json
from contextlib import suppress

import numpy as np
import pytest
from harness.published import tokenizer, write_checkpoint
from harness.published_families import FOLDER, N_VOCAB, adapter_tensors, known, tensors
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mtpcore import load_adapter, load_model
from mtpcore.conversion import convert, convert_adapter
from mtpcore.errors import ModelFileError

FAMILIES = known()
CASES = json.loads((FOLDER / "adapters.json").read_text())
CHOSEN = [
    case
    for case in CASES
    if case.split(", ")[-1] in ("patterns", "rows", "saved", "shifts", "lengths", "experts")
]
ODD = (
    *(None, True, -1, 0, 1 << 70, 0.5, float("nan"), float("inf"), "x", "(", [], {}, ["("]),
    *({"(": 2}, {"q_proj": 0}, {"q_proj": -3}, {"v_proj": 1e400}, {"embed_tokens": [-1]}),
    *([1 << 70], ["lm_head"], ["experts.down_proj"], "all", "pissa"),
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folders = {}
    for name in {CASES[case]["family"] for case in CHOSEN}:
        folder = folders[name] = tmp_path_factory.mktemp("base")
        family = FAMILIES[name]
        write_checkpoint(folder, family["config"], tensors(family["shapes"]), tokenizer(N_VOCAB))
    return folders


@st.composite
def damages(draw):
    """Draw a case, settings that are changed, and what happens to tensors."""
    case = draw(st.sampled_from(CHOSEN))
    config = CASES[case]["config"]
    changed = draw(st.dictionaries(st.sampled_from(sorted(config)), st.sampled_from(ODD)))
    names = sorted(CASES[case]["shapes"])
    kinds = st.sampled_from(["gone", "longer", "flat", "infinite", "whole", "renamed", "empty"])
    happened = draw(st.dictionaries(st.sampled_from(names), kinds, max_size=2))
    return case, changed, happened


def damaged(values, happened):
    """Return tensors after what happened to some."""
    made = dict(values)
    for name, kind in happened.items():
        array = made.pop(name)
        if kind == "longer":
            made[name] = np.concatenate([array, array])
        elif kind == "flat":
            made[name] = array.reshape(-1)
        elif kind == "infinite":
            made[name] = array * np.float32(np.inf)
        elif kind == "whole":
            made[name] = array.astype(np.int64)
        elif kind == "renamed":
            made[name.replace("lora_A", "lora_B", 1).replace("layers.0", "layers.99")] = array
        elif kind == "empty":
            made[name] = array[:0]
    return made


@searching(40)
@given(damages())
def test_a_file_or_a_reason(bases, tmp_path_factory, damage):
    case, changed, happened = damage
    folder = tmp_path_factory.mktemp("damaged")
    config = CASES[case]["config"] | changed
    (folder / "adapter_config.json").write_text(json.dumps(config))
    values = adapter_tensors(CASES[case]["family"], CASES[case]["shapes"])
    save_file(damaged(values, happened), folder / "adapter_model.safetensors")
    base = bases[CASES[case]["family"]]
    apart, merged = folder / "a.gguf", folder / "m.gguf"
    with suppress(ModelFileError):
        convert_adapter(folder, apart, base=base)
    if apart.exists():
        load_adapter(apart).close()
    with suppress(ModelFileError):
        convert(base, merged, outtype="f32", lora=[folder])
    if merged.exists():
        load_model(merged).close()
    names = "a.gguf", "m.gguf", "adapter_config.json", "adapter_model.safetensors"
    assert {path.name for path in folder.iterdir()} <= {*names}
