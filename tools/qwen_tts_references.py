"""Compute what the package qwen-tts makes of the small Qwen3-TTS of ``tests/harness/qwen_tts.py``.

    python tools/qwen_tts_references.py tests/data/qwen_tts

Needs torch, transformers 4.57 and qwen-tts 0.1; of the packages for sound that it imports nothing
is used here, so that they may be missing. ``refs.npz`` gets, of each speech in ``SPEECHES``, in
float32 and greedy: ``frames`` int32[n, codebooks], ``hidden`` float32[n, width] (the talker's
newest row after its norm), ``first`` float32[n + 1, ids] (its logits, those of the frame that was
not written included), and ``depth`` float32[n, codebooks - 1, codes], the code predictor's logits
of each code; the names go on with the number of the speech. ``wide`` are the frames of the first
speech where the code predictor is as wide as the talker and projects nothing.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import qwen_tts as small

N_FRAMES = 8


class Soundless:
    """Finds packages for sound where there are none: empty modules."""

    NAMES = ("librosa", "torchaudio", "soundfile", "sox", "onnxruntime", "einops")

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Return the place of an empty module."""
        if name.split(".")[0] not in self.NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module in which every name is None."""
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: None  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it empty."""


def load(depth: int = small.DEPTH) -> Any:
    """Return the model."""
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration

    settings = {k: v for k, v in small.configuration(depth).items() if k != "architectures"}
    config = Qwen3TTSConfig(**settings)
    for one in (config, config.talker_config, config.talker_config.code_predictor_config):
        one._attn_implementation = "eager"
    model = Qwen3TTSForConditionalGeneration(config).eval()
    parameters = dict(model.named_parameters())
    weights = small.weights(depth=depth)
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    for name, values in weights.items():
        parameters[name].data.copy_(torch.from_numpy(values))
    return model


def ids(*tokens: int) -> torch.Tensor:
    """Return token ids as a batch of one."""
    return torch.tensor([tokens])


def speak(model: Any, speech: small.Speech) -> dict[str, np.ndarray]:
    """Return what the model makes of a speech."""
    found: dict[str, list[Any]] = {"first": [], "depth": []}
    begin = (small.IM_START, small.ASSISTANT, small.NEWLINE)
    end = (small.IM_END, small.NEWLINE)
    given: dict[str, Any] = {}
    is_row = isinstance(speech.speaker, np.ndarray)
    if is_row:
        reference = speech.reference
        given["voice_clone_prompt"] = {
            "ref_spk_embedding": [torch.from_numpy(speech.speaker)],
            "x_vector_only_mode": [reference is None],
            "icl_mode": [reference is not None],
            "ref_code": None if reference is None else [torch.from_numpy(reference[1]).long()],
        }
        if reference is not None:
            given["ref_ids"] = [ids(*begin, *reference[0], *end)]

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, made: found[name].append(made[0, -1].numpy().copy())

    talker = model.talker
    hooks = [talker.codec_head.register_forward_hook(keep("first"))]
    hooks += [head.register_forward_hook(keep("depth")) for head in talker.code_predictor.lm_head]
    with torch.no_grad():
        codes, hidden = model.generate(
            input_ids=[ids(*begin, *speech.text, *end, *begin)],
            instruct_ids=[None if speech.instruct is None else ids(*speech.instruct)],
            languages=[speech.language],
            speakers=None if is_row else [speech.speaker],
            non_streaming_mode=not speech.streams,
            max_new_tokens=N_FRAMES + 1,
            do_sample=False,
            subtalker_dosample=False,
            repetition_penalty=1.0,
            **given,
        )
    for hook in hooks:
        hook.remove()
    n = len(codes[0])
    first, depth = np.array(found["first"]), np.array(found["depth"])
    assert len(first) == n + 1, "not a frame for each pass"
    depth = depth.reshape(n, small.N_CODEBOOKS - 1, small.N_CODES)
    allowed = first.copy()
    marks = np.arange(small.N_FIRST) >= small.N_CODES
    marks[small.MARKS["codec_eos_token_id"]] = False
    allowed[:, marks] = -np.inf
    for logits in (allowed, depth):
        best = np.sort(logits, -1)
        assert (best[..., -1] - best[..., -2]).min() > 1e-3, "a choice is too close to call"
    return {
        "frames": codes[0].numpy().astype(np.int32),
        "hidden": hidden[0].numpy(),
        "first": first,
        "depth": depth,
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    sys.meta_path.append(Soundless())
    model = load()
    arrays: dict[str, Any] = {}
    for i, speech in enumerate(small.SPEECHES.values()):
        arrays |= {f"{name}{i}": values for name, values in speak(model, speech).items()}
    first = next(iter(small.SPEECHES.values()))
    arrays["wide"] = speak(load(small.WIDTH), first)["frames"]
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
