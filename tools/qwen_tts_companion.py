"""Let llama.cpp's converter write the companion of a small Qwen3-TTS, and note what is in it.

    python tools/qwen_tts_companion.py LLAMA_CPP tests/data/qwen_tts

Needs the source of llama.cpp (that of llama-cpp-python 0.3.36), torch, transformers 4.57 and
qwen-tts 0.1, whose modules say that the checkpoint's names and shapes are the published ones; of
the packages for sound that qwen-tts imports nothing is used here, so that they may be missing.
``peer.json`` gets, of each type, ``metadata`` (the keys of ``clip``) and ``tensors``: type, shape
and a sum of the values in which each has a weight of its own. ``sound.npz`` gets what the package
makes with them: ``sound`` float32[n] of ``qwen_tts_sound.codes()``, by a codec of ``N_KNOWN``
codes, and ``voice`` float32[width] of ``qwen_tts_sound.heard()``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import qwen_tts, qwen_tts_sound
from qwen_tts_references import Soundless
from safetensors.numpy import save_file

TYPES = ("f32", "f16", "bf16")


def listen() -> dict[str, np.ndarray]:
    """Return what the package's modules make of codes and of sound, once names and shapes agree."""
    sys.meta_path.append(Soundless())
    from qwen_tts.core.models import modeling_qwen3_tts as modeling
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import (
        Qwen3TTSTokenizerV2DecoderConfig,
    )
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import (
        Qwen3TTSTokenizerV2Decoder,
    )

    n_codes = qwen_tts_sound.N_KNOWN
    settings = {**qwen_tts_sound.CODEC, "codebook_size": n_codes}
    codec_config = Qwen3TTSTokenizerV2DecoderConfig(**settings)
    codec_config._attn_implementation = "eager"
    voice_config = Qwen3TTSSpeakerEncoderConfig(**qwen_tts_sound.VOICE)
    voice = modeling.Qwen3TTSSpeakerEncoder(voice_config)
    codec = Qwen3TTSTokenizerV2Decoder(codec_config)
    for module, prefix, made in (
        (voice, "speaker_encoder.", qwen_tts_sound.voice()),
        (codec, "decoder.", qwen_tts_sound.codec(n_codes=n_codes)),
    ):
        state = module.eval().state_dict()
        found = {n.removeprefix(prefix): v for n, v in made.items() if n.startswith(prefix)}
        assert {n: tuple(v.shape) for n, v in state.items()} == {
            n: v.shape for n, v in found.items()
        }
        module.load_state_dict({name: torch.from_numpy(v) for name, v in found.items()})
    filters = mel_filter_bank(513, qwen_tts_sound.MELS, 0, 12000, 24000, "slaney", "slaney")
    modeling.librosa_mel_fn = lambda **settings: filters.T
    with torch.no_grad():
        mels = modeling.mel_spectrogram(
            torch.from_numpy(qwen_tts_sound.heard())[None],
            n_fft=1024,
            num_mels=qwen_tts_sound.MELS,
            sampling_rate=24000,
            hop_size=256,
            win_size=1024,
            fmin=0,
            fmax=12000,
        )
        codes = torch.from_numpy(qwen_tts_sound.codes()).long()
        return {
            "voice": voice(mels.transpose(1, 2))[0].numpy(),
            "sound": codec(codes.T[None])[0, 0].numpy(),
        }


def write(folder: Path) -> None:
    """Write the checkpoint; the companion needs no tokenizer."""
    inner = folder / "speech_tokenizer"
    inner.mkdir(parents=True)
    n = qwen_tts_sound.N_CODEBOOKS
    config = qwen_tts.configuration(n_codebooks=n)
    config["speaker_encoder_config"] = qwen_tts_sound.VOICE
    (folder / "config.json").write_text(json.dumps(config))
    tensors = qwen_tts.weights(n_codebooks=n) | qwen_tts_sound.voice()
    save_file(tensors, folder / "model.safetensors")
    (inner / "config.json").write_text(json.dumps({"decoder_config": qwen_tts_sound.CODEC}))
    save_file(qwen_tts_sound.codec(), inner / "model.safetensors")


def describe(path: Path) -> dict[str, Any]:
    """Return what is in a file."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(n) for n in tensor.shape[::-1]]
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float64).ravel()
        total = float(values @ np.cos(np.arange(values.size)))
        tensors[tensor.name] = [tensor.tensor_type.name, shape, round(total, 9)]
    metadata = {
        name: field.contents() for name, field in reader.fields.items() if name.startswith("clip.")
    }
    return {"metadata": metadata, "tensors": tensors}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    arrays: dict[str, Any] = {**listen()}
    np.savez_compressed(options.folder / "sound.npz", **arrays)
    sys.path.insert(0, str(options.llama_cpp / "gguf-py"))
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "hf")
        for kind in TYPES:
            path = folder / f"mmproj-{kind}.gguf"
            command = [sys.executable, str(options.llama_cpp / "convert_hf_to_gguf.py")]
            command += ["--mmproj", "--outtype", kind, "--outfile", str(path), str(folder / "hf")]
            subprocess.run(command, check=True)
            found[kind] = describe(path)
    (options.folder / "peer.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
