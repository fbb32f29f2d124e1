"""A plan whose operations would leave what they are given is not made, whatever lowering did."""

import numpy as np
import pytest
from harness import qwen_tts
from harness.published import tokenizer, write_checkpoint

import mtpcore
from mtpcore._ext._matmul import pack
from mtpcore.backends.cpu.backend import CpuPlan
from mtpcore.backends.cpu.lower import Lowering
from mtpcore.backends.cpu.store import CpuStore
from mtpcore.backends.cpu.weights import CpuWeights
from mtpcore.conversion import convert
from mtpcore.errors import BackendError

F32 = 0


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    texts = tokenizer(qwen_tts.N_TEXT)
    write_checkpoint(folder / "hf", qwen_tts.configuration(), qwen_tts.weights(), texts)
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    speech = mtpcore.load_model(folder / "model.gguf")
    demos = {name: mtpcore.load_model(name) for name in ("demo", "demo:mimo2", "demo:deepseek")}
    return {**demos, "speech": speech, "speech:depth": speech}


def lower(models, name):
    model = models[name]
    program = model.program(graph_type="depth" if name == "speech:depth" else "llm")
    stores = [CpuStore(program.memory, 2, "f16")]
    return Lowering(program, CpuWeights(model), stores, n_batch=4, n_ctx=64)


def matrix(n_rows, n_cols):
    return pack(np.zeros((n_rows, n_cols), np.float32).view(np.uint8), F32, n_rows, n_cols)


def other_matrices(step, more_rows=0, more_cols=0):
    n_rows, n_cols = step.matrices[0].shape
    step.matrices = [matrix(n_rows + more_rows, n_cols + more_cols) for _ in step.matrices]


def fewer_experts(step):
    step.matrices, step.ints = step.matrices[:-1], [step.ints[0] - 1]


def set_int(step, at, value):
    step.ints = [*step.ints[:at], value, *step.ints[at + 1 :]]


def set_ints(step, values):
    for at, value in values.items():
        set_int(step, at, value)


def shorter_weight(step):
    step.weights = [w if w is None else w[:-1].copy() for w in step.weights]


def narrower(view):
    return view._replace(width=view.width - 1)


MISFITS = {
    "embed, rows": ("demo", "embed", lambda s: other_matrices(s, more_cols=1)),
    "matmul, rows": ("demo", "matmul", lambda s: other_matrices(s, more_rows=1)),
    "matmul, columns": ("demo", "matmul", lambda s: other_matrices(s, more_cols=32)),
    "matmul, bias": ("demo", "matmul", shorter_weight),
    "prepare, room": ("demo", "prepare", lambda s: setattr(s, "inputs", [wide(s.inputs[0])])),
    "norm, weight": ("demo", "rms_norm", shorter_weight),
    "norm, rows": ("demo", "rms_norm", lambda s: setattr(s, "inputs", [narrower(s.inputs[0])])),
    "add, rows": (
        "demo",
        "add",
        lambda s: setattr(s, "inputs", [s.inputs[0], narrower(s.inputs[1])]),
    ),
    "route, used": ("demo", "route", lambda s: set_int(s, 0, 9)),
    "route, groups": ("demo", "route", lambda s: set_ints(s, {3: 2, 4: 3})),
    "route, used of groups": ("demo", "route", lambda s: set_ints(s, {0: 4, 3: 4, 4: 1})),
    "route, correction": ("demo", "route", shorter_weight),
    "sort_by_expert, experts": ("demo", "sort_by_expert", lambda s: set_int(s, 0, 7)),
    "sort_by_expert, room": ("demo", "sort_by_expert", lambda s: set_int(s, 0, 900)),
    "sort_by_expert, used": (
        "demo",
        "sort_by_expert",
        lambda s: setattr(s, "outputs", [narrower(s.outputs[0])]),
    ),
    "sort_by_expert, no ids": (
        "demo",
        "sort_by_expert",
        lambda s: setattr(s, "inputs", [s.inputs[0]._replace(buffer=0)]),
    ),
    "prepare_by_expert, lists": ("demo", "prepare_by_expert", lambda s: set_int(s, 0, 9)),
    "expert_matmul, fewer": ("demo", "expert_matmul", fewer_experts),
    "expert_matmul, count": ("demo", "expert_matmul", lambda s: set_int(s, 0, 7)),
    "expert_matmul, rows": ("demo", "expert_matmul", lambda s: other_matrices(s, more_rows=1)),
    "expert_matmul, columns": ("demo", "expert_matmul", lambda s: other_matrices(s, more_cols=32)),
    "mix, ranks": ("demo", "mix", lambda s: setattr(s, "inputs", [s.inputs[0], one(s.inputs[1])])),
    "angles, numbers": ("demo", "angles", lambda s: setattr(s, "numbers", s.numbers[:-1].copy())),
    "angles, axes": ("demo", "angles", lambda s: setattr(s, "axes", s.axes - np.int32(1))),
    "rope, pairs": ("demo", "rope", lambda s: set_int(s, 0, s.ints[0] + 32)),
    "rope, negative": ("demo", "rope", lambda s: set_int(s, 0, -1)),
    "remember, page": ("demo", "remember", lambda s: set_int(s, 0, 1 << 20)),
    "remember, values": ("demo", "remember", lambda s: set_int(s, 1, 1 << 20)),
    "remember, group": ("demo", "remember", lambda s: setattr(s, "memory", 1)),
    "attention, page": ("demo", "attention", lambda s: set_int(s, 0, 1 << 20)),
    "attention, key heads": ("demo", "attention", lambda s: set_int(s, 2, 3)),
    "attention, sinks": ("demo:mimo2", "attention", shorter_weight),
    "attention, latent page": ("demo:deepseek", "attention", lambda s: set_int(s, 0, 1 << 20)),
    "head_matmul, heads": ("demo:deepseek", "expert_matmul", fewer_experts),
    "embed_codes, rows": ("speech", "embed_codes", lambda s: set_int(s, 0, s.ints[0] + 1)),
    "embed_codes, first": ("speech", "embed_codes", lambda s: set_int(s, 1, s.ints[1] + 1)),
    "embed_codes, none": ("speech", "embed_codes", lambda s: set_int(s, 1, 0)),
    "embed_codes, columns": ("speech", "embed_codes", lambda s: other_matrices(s, more_cols=4)),
    "embedding_rows, rows": (
        "speech",
        "embedding_rows",
        lambda s: setattr(s, "inputs", [narrower(s.inputs[0])]),
    ),
    "embed, parts": ("speech:depth", "embed", lambda s: set_int(s, 2, s.ints[2] + 1)),
    "embed, rows of a part": ("speech:depth", "embed", lambda s: set_int(s, 3, s.ints[3] + 1)),
    "embed, rows of the first": ("speech:depth", "embed", lambda s: set_int(s, 5, s.ints[5] + 1)),
    "embed, no rows of the first": ("speech:depth", "embed", lambda s: set_int(s, 5, 0)),
}


def wide(view):
    return view._replace(width=2 * view.width)


def one(view):
    return view._replace(width=1)


@pytest.mark.parametrize("name", MISFITS)
def test_no_plan_is_made(name, models):
    model, kind, change = MISFITS[name]
    lowered = lower(models, model)
    steps = [step for step in lowered.steps if step.kind == kind]
    change(next((step for step in steps if any(w is not None for w in step.weights)), steps[0]))
    with pytest.raises(BackendError):
        CpuPlan(lowered, threads=1)


@pytest.mark.parametrize("model", sorted({name for name, _, _ in MISFITS.values()}))
def test_what_fits_is_made(model, models):
    CpuPlan(lower(models, model), threads=2)


def test_positions_have_the_axes_that_rope_reads(models):
    lowered = lower(models, "demo")
    for step in lowered.steps:
        if step.kind == "angles":
            step.axes = np.full_like(step.axes, 2)
    plan = CpuPlan(lowered, threads=1)
    context = mtpcore.Context(models["demo"], n_ctx=64)
    context.runner._plan = plan
    with pytest.raises(mtpcore.BatchError, match="fewer axes than are read"):
        context.process(mtpcore.Batch.of([1]))
