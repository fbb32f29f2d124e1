"""The door: what is said when something is missing, and a program through it."""

import subprocess
import sys
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from mtpcore import Context, load_model
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.cuda import CudaBackend
from mtpcore.backends.cuda import device as finding
from mtpcore.backends.cuda.launch import LAUNCHERS
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.errors import BackendError
from mtpcore.graph import GraphBuilder, Outputs
from mtpcore.graph.ops import OPS

KIND = gguf.GGMLQuantizationType
SIZES = {"n_batch": 8, "n_ctx": 16, "threads": 1, "stores": ()}


class Tensor:
    def __init__(self, values, kind=KIND.F32):
        self.shape, self.type = values.shape, int(kind)
        self._blocks = gguf.quants.quantize(values, kind)

    def release(self, begin, end):
        pass

    def raw(self):
        return self._blocks.view(np.uint8).reshape(-1)

    def array(self):
        return gguf.quants.dequantize(self._blocks, KIND(self.type))


@pytest.fixture
def source():
    normal = np.random.default_rng(0).standard_normal
    tensors = {
        "norm": Tensor(normal(96).astype(np.float32)),
        "matrix": Tensor(normal((40, 96)).astype(np.float32), KIND.Q4_0),
        "bias": Tensor(normal(40).astype(np.float32)),
    }
    return SimpleNamespace(tensors=tensors, packed={})


def builder(source):
    return GraphBuilder("fusion", source.tensors, slots={"hidden": 96})


def fusion(source):
    graph = builder(source)
    x = graph.rms_norm(graph.inputs["hidden"], "norm", eps=1e-6)
    return graph.finish(Outputs(fused=graph.matmul(x, "matrix", "bias"), normed=x))


def rows(n):
    hidden = np.random.default_rng(n).standard_normal((n, 96)).astype(np.float32)
    place = np.arange(n, dtype=np.int32)
    return CheckedBatch(
        tokens=place,
        positions=place[:, None],
        seq=np.zeros(n, np.int32),
        place=place,
        outputs=place[:0],
        slots={"hidden": hidden},
    )


def test_program_gives_what_the_reference_gives(device, source):
    program = fusion(source)
    plan = CudaBackend(device).plan(program, source, **SIZES)
    wanted = ReferenceBackend(quantise_activations=True).plan(program, source, **SIZES)
    for n in (3, 8, 1, 0):
        made, defined = plan.run(rows(n), None), wanted.run(rows(n), None)
        assert made.keys() == defined.keys()
        for name in made:
            assert made[name].shape == defined[name].shape
            assert np.asarray(made[name]).shape == defined[name].shape
            # A last-bit difference of the norm may move a rounded activation by one.
            scale = np.abs(defined[name]).max(initial=1.0)
            assert np.abs(made[name] - defined[name]).max(initial=0) < 3e-3 * scale


def test_plans_share_packed_weights(emulated, source):
    backend, program = CudaBackend(emulated), fusion(source)
    backend.plan(program, source, **SIZES)
    before = dict(source.packed)
    backend.plan(program, source, **SIZES)
    assert before.keys() == source.packed.keys()
    assert all(source.packed[key] is made for key, made in before.items())


def test_first_operation_without_kernel_is_named(emulated, source, monkeypatch):
    graph = builder(source)
    x = graph.rms_norm(graph.inputs["hidden"], "norm", eps=1e-6, name="first")
    x = graph.scale(x, 2.0, name="second")
    program = graph.finish(Outputs(x=x))
    with monkeypatch.context() as patch:
        patch.delitem(LAUNCHERS, "scale")
        with pytest.raises(BackendError, match="'scale'") as caught:
            CudaBackend(emulated).plan(program, source, **SIZES)
    assert caught.value.where == "second"


def test_no_operation_is_without_kernel():
    assert set(LAUNCHERS) == set(OPS)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(BackendError, match="no CUDA device") as caught:
        CudaBackend()
    assert "packages are missing" in caught.value.got
    assert "pip install 'mtpcore[cuda]'" in caught.value.fix


def all_devices(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (RuntimeError("libcuda.so.1 is not found"), "driver does not answer.*libcuda.so.1"),
        ((), "0 GPUs"),
        ((SimpleNamespace(name="Old GPU", compute_capability=(7, 5)),), "7.5"),
    ],
    ids=["no driver", "no GPU", "old GPU"],
)
def test_missing_driver_and_gpu_are_told_apart(monkeypatch, answer, got):
    core = SimpleNamespace(
        Device=SimpleNamespace(get_all_devices=lambda: all_devices(answer)),
        cuDriverGetVersion=lambda: ("CUDA_SUCCESS", 13000),
    )
    monkeypatch.setattr(finding, "import_cuda", lambda module: core)
    with pytest.raises(BackendError, match=rf"no CUDA device can be used.*got .*{got}") as caught:
        CudaBackend()
    assert "backend='cpu'" in caught.value.fix


def test_machine_without_gpu_is_told_what_to_do():
    pytest.importorskip("cuda.core", reason="needs the extra cuda")
    try:
        CudaBackend()
    except BackendError as error:
        said = error
    else:
        pytest.skip("this machine has a GPU")
    assert said.what == "no CUDA device can be used"
    assert "driver" in str(said.got) or "GPUs" in str(said.got)
    assert "nvidia-smi" in said.fix


def test_a_context_without_a_gpu_says_what_is_missing():
    """Whether the packages, the driver or the GPU is; the model is as it was."""
    with load_model("demo") as model:
        try:
            Context(model, 64, backend="cuda")
        except BackendError as error:
            said = error
        else:
            pytest.skip("this machine has a GPU")
        assert said.what == "no CUDA device can be used"
        assert "packages are missing" in said.got or "driver" in said.got or "GPUs" in said.got
        assert "mtpcore[cuda]" in said.fix or "nvidia-smi" in said.fix
        assert "backend='cpu'" in said.fix
        assert not model.packed
        assert Context(model, 64).length(0) == 0


def test_importing_the_package_imports_nothing_of_cuda():
    code = (
        "import sys, mtpcore, mtpcore.backends.cuda;"
        "sys.exit(sum(name.split('.')[0] == 'cuda' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
