"""llama.cpp's multimodal library as a witness of Qwen3-TTS, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ctypes import POINTER, byref, c_float, c_int32
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.witness import PATHS

__all__ = ["Sound", "needs_library", "speak"]


def _has_library() -> bool:
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return False
    folder = Path(os.environ.get("MTMD_CPP_LIB") or Path(spec.origin).parent / "lib")
    return any(folder.glob("*mtmd*"))


needs_library = pytest.mark.skipif(
    not _has_library(), reason="llama-cpp-python is not installed with its multimodal library"
)


class Sound(NamedTuple):
    """What it made: codes int32[frames, codebooks], f32[n] of sound, f32[width] of a voice."""

    codes: np.ndarray
    sound: np.ndarray
    voice: np.ndarray


def speak(path: Path, beside: Path, given: Path, out: Path) -> Sound:
    """Let llama.cpp load both files and speak; ``given`` is an ``.npz`` and ``out`` becomes one.

    Of ``first`` int32[n] and ``hidden`` f32[n, width] it makes the codes, greedy; of ``codes``
    int32[n, codebooks] sound; of ``heard`` f32[n] a voice.
    """
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {PATHS}; "
               "from harness.witness_sound import testify; testify()"]  # fmt: skip
    asked = json.dumps([str(one) for one in (path, beside, given, out)])
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"llama.cpp ended with {done.returncode}:\n{done.stderr[-4000:]}")
    with np.load(out) as file:
        return Sound(file["codes"], file["sound"], file["voice"])


def testify() -> None:
    """Answer what ``speak`` asks on the standard input."""
    import llama_cpp
    from llama_cpp import mtmd_cpp as m
    from versus.peer import PeerModel

    path, beside, given, out = json.load(sys.stdin)
    settings = m.mtmd_context_params_default()
    settings.use_gpu, settings.n_threads = False, 1
    model = PeerModel(Path(path), repack=False)
    context = m.mtmd_init_from_file(beside.encode(), model.handle, settings)
    if not context:
        raise RuntimeError(f"llama.cpp does not load {beside}")

    def made(asked: m.mtmd_gen_inp) -> m.mtmd_gen_out:
        result = m.mtmd_gen_out()
        if m.mtmd_gen_audio_process(context, byref(asked), byref(result)):
            raise RuntimeError("llama.cpp makes nothing of it")
        return result

    with np.load(given) as file:
        first, hidden, codes, heard = (file[n] for n in ("first", "hidden", "codes", "heard"))
    frames = []
    for code, row in zip(first, np.ascontiguousarray(hidden), strict=True):
        asked = m.mtmd_gen_inp_default(context)
        asked.code0, asked.top_k = int(code), 1
        asked.embd = row.ctypes.data_as(POINTER(c_float))
        result = made(asked)
        frames.append([result.codes[i] for i in range(result.n_codes)])
    codes = np.ascontiguousarray(codes)
    asked = m.mtmd_gen_inp_default(context)
    asked.type = m.MTMD_GEN_PROCESS_TYPE_GEN_WAV
    asked.codes, asked.n_codes = codes.ctypes.data_as(POINTER(c_int32)), codes.size
    result = made(asked)
    sound = np.array([result.audio[i] for i in range(result.n_samples)], np.float32)
    np.savez(
        out,
        codes=np.array(frames, np.int32),
        sound=sound,
        voice=_voice_of(m, context, heard, llama_cpp.llama_model_n_embd_inp(model.handle)),
    )


def _voice_of(m: Any, context: int, heard: np.ndarray, width: int) -> np.ndarray:
    """Return the row that the encoder of voices makes of what was heard."""
    heard = np.ascontiguousarray(heard)
    bitmap = m.mtmd_bitmap_init_from_audio(len(heard), heard.ctypes.data_as(POINTER(c_float)))
    marker = m.mtmd_default_marker()
    text = m.mtmd_input_text(marker, len(marker), False, True)
    chunks = m.mtmd_input_chunks_init()
    if m.mtmd_tokenize(context, chunks, byref(text), (m.mtmd_bitmap_p_ctypes * 1)(bitmap), 1):
        raise RuntimeError("llama.cpp does not take the sound")
    for i in range(m.mtmd_input_chunks_size(chunks)):
        chunk = m.mtmd_input_chunks_get(chunks, i)
        if m.mtmd_input_chunk_get_type(chunk) == m.MTMD_INPUT_CHUNK_TYPE_AUDIO:
            if m.mtmd_encode_chunk(context, chunk):
                raise RuntimeError("llama.cpp makes no voice of it")
            row = m.mtmd_get_output_embd(context)
            return np.array([row[k] for k in range(width)], np.float32)
    raise RuntimeError("llama.cpp heard no sound")
