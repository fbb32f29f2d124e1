"""Compute what transformers makes of the small CSM of ``tests/harness/csm.py``.

    python tools/csm_references.py tests/data/csm

Needs torch and transformers 5. ``refs.npz`` gets, of a prompt of text and three frames of codes, in
float32 and greedy: ``frames`` int32[n, codebooks], ``hidden`` (the backbone's newest row after its
norm) and ``first`` (its logits) of each, ``depth`` float32[n, codebooks - 1, codes], the depth
decoder's logits of each code; and ``spoken``, the frames that ``generate`` makes of the text alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import csm
from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig

N_FRAMES = 12


def load() -> Any:
    """Return the model, with a codec as small as can be: nothing here makes sound."""
    codec = MimiConfig(
        hidden_size=16, num_filters=2, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
        num_key_value_heads=2, intermediate_size=16, codebook_size=8, codebook_dim=8,
        vector_quantization_hidden_dimension=8, upsample_groups=1,
    )  # fmt: skip
    config = CsmConfig(**csm.configuration(), codec_config=codec.to_dict())
    config._attn_implementation = "eager"
    model = CsmForConditionalGeneration(config).eval()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, values in csm.weights().items():
        parameters[name].data.copy_(torch.from_numpy(values))
    model.tie_weights()
    table = model.backbone_model.embed_tokens.embed_audio_tokens.weight
    assert torch.equal(table, model.depth_decoder.model.embed_tokens.weight)
    return model


def decode(model: Any, hidden: torch.Tensor, first: int) -> tuple[list[int], np.ndarray]:
    """Return a frame, and the logits of its codes after the first."""
    codes, logits = [first], []
    for _ in range(csm.N_CODEBOOKS - 1):
        ids = torch.tensor([[0, *codes]])
        made = model.depth_decoder(
            input_ids=ids, backbone_last_hidden_state=hidden, use_cache=False
        ).logits
        logits.append(made[0, -1].numpy())
        codes.append(int(made[0, -1].argmax()))
    return codes, np.stack(logits)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    model = load()
    found: dict[str, list[Any]] = {"frames": [], "hidden": [], "first": [], "depth": []}
    with torch.no_grad():
        text = torch.from_numpy(csm.text()).long()[None]
        embed = model.backbone_model.embed_tokens
        spoken = embed(torch.from_numpy(csm.speech()).long()[None])
        rows = torch.cat([model.embed_text_tokens(text), spoken], 1)
        for _ in range(N_FRAMES):
            hidden = model.backbone_model(inputs_embeds=rows, use_cache=False).last_hidden_state[
                :, -1
            ]
            first = model.lm_head(hidden)[0]
            codes, logits = decode(model, hidden.clone(), int(first.argmax()))
            for name, value in (
                ("frames", codes),
                ("hidden", hidden[0].numpy()),
                ("first", first.numpy()),
                ("depth", logits),
            ):
                found[name].append(value)
            rows = torch.cat([rows, embed(torch.tensor([[codes]]))], 1)
        made = model.generate(
            input_ids=text, attention_mask=torch.ones_like(text), do_sample=False,
            max_new_tokens=N_FRAMES, depth_decoder_do_sample=False,
        )  # fmt: skip
    arrays: dict[str, Any] = {name: np.array(rows) for name, rows in found.items()}
    arrays["frames"] = arrays["frames"].astype(np.int32)
    best = np.sort(np.concatenate([arrays["first"][:, None], arrays["depth"]], 1), -1)
    assert (best[..., -1] - best[..., -2]).min() > 1e-3, "a choice is too close to call"
    arrays["spoken"] = made[0].numpy().astype(np.int32)
    np.savez_compressed(folder / "refs.npz", **arrays)


if __name__ == "__main__":
    main()
