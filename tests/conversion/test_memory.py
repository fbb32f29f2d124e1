"""How much memory a conversion takes: the largest tensor decides, not the model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.published import tokenizer

from mtpcore._ext._plan import HAS_ASAN

TESTS = Path(__file__).parents[1]
PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from harness.published import small_config, small_tensors, write_checkpoint
from mtpcore.conversion import convert, quantize

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

folder = Path({folder!r})
write_checkpoint(folder / "small", small_config(), small_tensors(small_config()))
convert(folder / "small", folder / "small.gguf")
quantize(folder / "small.gguf", folder / "small-q8_0.gguf", outtype="q8_0")
before = peak()
convert(folder / "large", folder / "large.gguf", outtype="f16")
between = peak()
quantize(folder / "large.gguf", folder / "large-q8_0.gguf", outtype="q8_0")
sizes = [(folder / name).stat().st_size for name in ("large.gguf", "large-q8_0.gguf")]
print(json.dumps([between - before, peak() - before, *sizes]))
"""
WIDTH, N_FF, N_LAYERS = 768, 3072, 10


def write_sparse_checkpoint(folder):
    """Write a llama of bfloat16 zeros that takes no room on the disk."""
    shapes = {"model.embed_tokens": (32, WIDTH), "model.norm": (WIDTH,), "lm_head": (32, WIDTH)}
    for n in range(N_LAYERS):
        at = f"model.layers.{n}."
        shapes |= {f"{at}self_attn.{p}_proj": (WIDTH, WIDTH) for p in "qkvo"}
        shapes |= {f"{at}mlp.{p}_proj": (N_FF, WIDTH) for p in ("gate", "up")}
        shapes[f"{at}mlp.down_proj"] = (WIDTH, N_FF)
        shapes |= {f"{at}{name}_layernorm": (WIDTH,) for name in ("input", "post_attention")}
    header, end = {}, 0
    for name, shape in shapes.items():
        n_values = shape[0] * (shape[1] if len(shape) > 1 else 1)
        offsets = [end, end := end + 2 * n_values]
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": N_FF,
        "max_position_embeddings": 64,
        "num_attention_heads": 8,
        "num_hidden_layers": N_LAYERS,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.skipif(HAS_ASAN, reason="AddressSanitizer keeps what was freed for a while")
def test_memory_is_bounded_by_the_largest_tensor(tmp_path):
    write_sparse_checkpoint(tmp_path / "large")
    program = PROGRAM.format(tests=str(TESTS), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    converted, quantised, size, small_size = json.loads(done.stdout)
    largest = 4 * N_FF * WIDTH  # as float32
    assert size > 15 * largest
    assert small_size > 7 * largest
    assert converted < 3 * largest
    assert quantised < 3 * largest
