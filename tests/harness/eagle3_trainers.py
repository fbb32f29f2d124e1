"""EAGLE-3 heads as trainers write them: the settings and names of each, of the same weights.

Each function returns ``config.json`` and the tensors of a head as one program's exporter writes
them, with the settings that it writes besides those that count. Read of the packages ``specforge``
0.2.0, ``speculators`` 0.9.0, ``angelslim`` 0.5.0, ``nemo-automodel`` 0.7.0, ``nvidia-modelopt``
0.47.0 and ``sglang`` 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from harness.eagle3 import Variant, config_of, layers_of, tensors_of

__all__ = ["TRAINERS"]

Head = tuple[dict[str, object], dict[str, np.ndarray]]
_LAYERS = "eagle_aux_hidden_state_layer_ids"
_OF_LLAMA = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "model_type": "llama",
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "transformers_version": "5.23.0",
    "use_cache": True,
}
_OF_QWEN3_VL = {
    "rope_scaling": {
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    }
}


def _plain(c: Variant, **more: object) -> dict[str, object]:
    """Return what all say of a head, without what counts only where it is on."""
    made = {key: value for key, value in config_of(c).items() if value not in (False, None)}
    made.pop(_LAYERS, None)
    return made | _OF_LLAMA | more


def _renamed(c: Variant, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the tensors, whose names begin otherwise."""
    made = {}
    for name, values in tensors_of(c).items():
        old = next((old for old in names if name.startswith(old)), "")
        made[names.get(old, "") + name[len(old) :]] = values
    return made


def _outputs(c: Variant) -> list[int]:
    """Return the layers whose output is read."""
    return [layer - 1 for layer in layers_of(c)]


def specforge(c: Variant) -> Head:
    """Return what ``to_sglang`` writes, of a draft configuration of its repository."""
    return _plain(
        c,
        dtype="bfloat16",
        eagle_config={_LAYERS: _outputs(c), "use_aux_hidden_state": True},
        max_window_layers=48,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        sliding_window=None,
        tie_word_embeddings=False,
        use_sliding_window=False,
    ), tensors_of(c)


def specforge_qwen3_vl(c: Variant) -> Head:
    """Return the same for a target that sees: positions have axes, and no layers are named."""
    config, tensors = specforge(c)
    del config["eagle_config"], config["rope_parameters"]
    vision = {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
    more = {"target_model_type": "qwen3_vl_moe", "max_window_layers": None, "rope_scaling": vision}
    return config | more, tensors


def specforge_phi4(c: Variant) -> Head:
    """Return the same for Phi-4-mini, whose heads rotate whole keys."""
    config, tensors = specforge(c)
    return config | {"model_type": "phi3", "tie_word_embeddings": True}, tensors


def speculators(c: Variant) -> Head:
    """Return what ``Eagle3DraftModel.save_pretrained`` writes."""
    layer = {"architectures": None, "layer_types": ["full_attention"], "model_type": "qwen3"}
    config = config_of(c._replace(nested="transformer_layer_config"))
    inner = dict(config["transformer_layer_config"]) | layer  # type: ignore[call-overload]
    return config | {
        _LAYERS: list(c.layers) if c.layers else None,
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "base_model_ep_plan": None,
        "dtype": "float32",
        "embed_requires_grad": False,
        "has_no_defaults_at_init": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "a/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": inner,
        "transformers_version": "5.23.0",
    }, _renamed(c, {c.prefix: "layers.0."})


def angelslim(c: Variant) -> Head:
    """Return what ``Eagle3LlamaForCausalLM.save_pretrained`` writes, for Qwen3-VL."""
    return _plain(
        c,
        architectures=["Eagle3LlamaForCausalLM"],
        aux_hidden_states_layer_ids=_outputs(c),
        dtype="bfloat16",
        image_token_id=5,
        modal_type="VLM",
        tie_word_embeddings=True,
        video_token_id=6,
        vision_end_token_id=7,
        vision_start_token_id=8,
        **_OF_QWEN3_VL,
    ), tensors_of(c)


def nemo(c: Variant) -> Head:
    """Return what NeMo AutoModel's recipe writes: the target's configuration, here Qwen3's."""
    names = {c.prefix: "model.layers.0."}
    names |= {name: f"model.{name}" for name in ("fc", "norm", "embed_tokens")}
    return _plain(
        c,
        architectures=["LlamaEagle3DraftModel"],
        attn_implementation="eager",
        dtype="bfloat16",
        fc_norm=c.fc_norm,
        layer_types=["full_attention"] * c.n_layers,
        max_window_layers=c.n_layers,
        model_type="qwen3",
        norm_output=c.norm_output,
        num_hidden_layers=c.n_layers,
        parallel_drafting=False,
        sliding_window=None,
        target_hidden_size=c.target_width,
        use_sliding_window=False,
    ), _renamed(c, names)


def nemo_gpt_oss(c: Variant) -> Head:
    """Return the same for gpt-oss: what it says of windows and experts is the target's alone."""
    config, tensors = nemo(c)
    return config | {
        "attention_bias": True,
        "experts_per_token": 4,
        "initial_context_length": 4096,
        "layer_types": ["sliding_attention", "full_attention"] * (c.n_layers // 2),
        "model_type": "gpt_oss",
        "num_experts_per_tok": 4,
        "num_local_experts": 32,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
    }, tensors


def modelopt(c: Variant) -> Head:
    """Return what Model Optimizer's ``EagleExporter`` writes."""
    names = {c.prefix: "layers.0."}
    tensors = {name: values for name, values in _renamed(c, names).items() if name != "t2d"}
    config = _plain(
        c,
        eagle_config={
            _LAYERS: _outputs(c),
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            "parallel_draft_heads_num_layers": 1,
        },
        has_lm_head=True,
        rope_scaling={"rope_type": "default", "rope_theta": 10000},
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    return config, tensors


def sglang(c: Variant) -> Head:
    """Return older files that SGLang reads, with other names for EAGLE-3.1's norms."""
    config = _plain(c, eagle_config={_LAYERS: _outputs(c)}, num_aux_hidden_states=3)
    if c.norm_before_fc:
        del config["norm_before_fc"]
        config["eagle_config"] = {_LAYERS: _outputs(c), "norm_before_fc": True}
    if not c.fc_norm:
        return config, tensors_of(c)
    del config["fc_norm"]
    names = {f"fc_norm.{i}.": f"aux_norm_{name}." for i, name in enumerate(("low", "mid", "high"))}
    return config | {"use_aux_norm": True}, _renamed(c, names)


def nebius(c: Variant) -> Head:
    """Return what nebius published for gpt-oss: a whole model's class."""
    config = _plain(c, architectures=["LlamaForCausalLM"], truncated_vocab_size=c.n_draft)
    return config, tensors_of(c)


_OTHERS = Variant(layers=(1, 3, 4))
TRAINERS: dict[str, tuple[Callable[[Variant], Head], Variant]] = {
    "SpecForge": (specforge, _OTHERS),
    "SpecForge, 3.1": (specforge, _OTHERS._replace(fc_norm=True, norm_output=True)),
    "SpecForge, Phi-4-mini": (specforge_phi4, _OTHERS),
    "SpecForge, Qwen3-VL": (specforge_qwen3_vl, Variant()),
    "speculators": (speculators, Variant(layers=(0, 2, 6), qk_norm=True, own_table=True)),
    "speculators, Llama": (speculators, Variant(norm_before_residual=True, own_table=True)),
    "speculators, gpt-oss": (speculators, Variant(norm_before_residual=True, norm_before_fc=True)),
    "AngelSlim, Qwen3-VL": (angelslim, _OTHERS),
    "NeMo": (nemo, Variant(own_table=True)),
    "NeMo, 3.1": (nemo, Variant(fc_norm=True, norm_output=True, own_table=True)),
    "NeMo, gpt-oss": (nemo_gpt_oss, Variant(biases=True, scaling="yarn, not rounded")),
    "Model Optimizer": (modelopt, _OTHERS),
    "Model Optimizer, every token": (modelopt, _OTHERS._replace(n_draft=_OTHERS.n_vocab)),
    "SGLang, older names": (sglang, _OTHERS._replace(fc_norm=True)),
    "SGLang, nested norm": (sglang, _OTHERS._replace(norm_before_fc=True)),
    "nebius, gpt-oss": (nebius, Variant(scaling="yarn, not rounded")),
}
"""By trainer and target: its layout, and the head that it is to be."""
