"""Write the network as a GGUF file that llama.cpp reads, and read such a file back."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from tokenizers import AddedToken, Tokenizer, models

from demo.corpus import END_OF_TEXT, SPECIAL, make_tokenizer
from demo.network import Network, Shape

ARCH = "glm4moe"
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write_model(path: Path, network: Network, tokenizer: Tokenizer, about: dict[str, str]) -> None:
    """Write norms, biases and router as F32, every other matrix as Q8_0.

    Parameters
    ----------
    about
        String entries such as `general.name`, written as they are.
    """
    writer = gguf.GGUFWriter(path, ARCH)
    writer.add_type("model")
    for key, value in about.items():
        writer.add_string(key, value)
    sizes = {name: tensor.numel() for name, tensor in network.state_dict().items()}
    n_routed = sum(n for name, n in sizes.items() if "exps." in name)
    n_shared, n_one = sum(sizes.values()) - n_routed, n_routed // network.shape.n_expert
    writer.add_size_label(
        gguf.size_label(sum(sizes.values()), n_shared, n_one, network.shape.n_expert)
    )
    _add_shape(writer, network.shape)
    _add_tokenizer(writer, tokenizer)
    for name, tensor in network.state_dict().items():
        array = tensor.detach().float().numpy()
        if array.ndim == 1 or "ffn_gate_inp." in name:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantize(array, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.n_layer + 1)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_expert_used)
    writer.add_expert_group_count(1)
    writer.add_expert_group_used_count(1)
    writer.add_key_length(shape.n_head_dim)
    writer.add_value_length(shape.n_head_dim)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_rope_dimension_count(shape.n_rope)
    writer.add_expert_feed_forward_length(shape.n_ff_expert)
    writer.add_expert_shared_count(1)
    writer.add_leading_dense_block_count(shape.n_dense)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(shape.expert_scale)
    writer.add_expert_weights_norm(True)
    writer.add_nextn_predict_layers(1)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_bos_token_id(tokens.index("[gMASK]"))
    writer.add_eot_token_id(tokens.index("<|user|>"))
    writer.add_unk_token_id(END_OF_TEXT)
    writer.add_eom_token_id(tokens.index("<|observation|>"))


def read_model(path: Path) -> tuple[Network, Tokenizer]:
    """Read a file that `write_model` wrote, with its weights dequantised to float32."""
    reader = gguf.GGUFReader(path)

    def key(name: str) -> int | float:
        return reader.fields[f"{ARCH}.{name}"].contents()

    shape = Shape(
        n_vocab=len(reader.fields["tokenizer.ggml.tokens"].data),
        n_embd=key("embedding_length"),
        n_layer=key("block_count") - key("nextn_predict_layers"),
        n_dense=key("leading_dense_block_count"),
        n_ff=key("feed_forward_length"),
        n_ff_expert=key("expert_feed_forward_length"),
        n_expert=key("expert_count"),
        n_expert_used=key("expert_used_count"),
        n_head=key("attention.head_count"),
        n_head_kv=key("attention.head_count_kv"),
        n_head_dim=key("attention.key_length"),
        n_rope=key("rope.dimension_count"),
        rope_base=key("rope.freq_base"),
        rms_eps=key("attention.layer_norm_rms_epsilon"),
        expert_scale=key("expert_weights_scale"),
        n_ctx=key("context_length"),
    )
    network = Network(shape)
    weights = {
        t.name: torch.from_numpy(
            np.array(dequantize(t.data, t.tensor_type), dtype=np.float32).reshape(
                t.shape[::-1].tolist()
            )
        )
        for t in reader.tensors
    }
    network.load_state_dict(weights)
    return network.eval(), _read_tokenizer(reader)


def _read_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = make_tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer
