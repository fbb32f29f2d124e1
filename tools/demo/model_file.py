"""Write networks as GGUF files that llama.cpp reads, and read such files back."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from tokenizers import AddedToken, Tokenizer, models
from torch import nn

from demo.corpus import END_OF_TEXT, SPECIAL, make_tokenizer
from demo.network import Value

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def write_model(
    path: Path, network: nn.Module, tokenizer: Tokenizer, about: dict[str, str]
) -> None:
    """Write norms, biases and router as F32, every other matrix as Q8_0.

    Parameters
    ----------
    network
        One of a family's `files()`: it has an `arch`, and `metadata()` under that name. Where it
        drafts after mask tokens, `mask_token` is their id.
    about
        String entries such as `general.name`, written as they are.
    """
    writer = gguf.GGUFWriter(path, network.arch)
    writer.add_type("model")
    for key, value in about.items():
        writer.add_string(key, value)
    metadata = network.metadata()
    weights = network.state_dict()
    writer.add_size_label(_size_label(weights, metadata.get("expert_count", 0)))
    for key, value in metadata.items():
        _add(writer, f"{network.arch}.{key}", value)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(writer, tokenizer)
    if (mask := getattr(network, "mask_token", None)) is not None:
        writer.add_mask_token_id(mask)
    for name, tensor in weights.items():
        array = tensor.detach().numpy()
        if array.ndim == 1 or "ffn_gate_inp." in name:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, quantize(array, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _size_label(weights: dict[str, torch.Tensor], n_expert: int) -> str:
    sizes = {name: tensor.numel() for name, tensor in weights.items()}
    n_routed = sum(n for name, n in sizes.items() if "exps." in name)
    n_one = n_routed // n_expert if n_expert else 0
    n_all = sum(sizes.values())
    return str(gguf.size_label(n_all, n_all - n_routed, n_one, n_expert))


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


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


def read_model(path: Path, network: nn.Module) -> Tokenizer:
    """Fill a network from the file that `write_model` wrote of one of its shape, dequantised.

    Raises
    ------
    ValueError
        The file's metadata are not those of the network.
    """
    reader = gguf.GGUFReader(path)
    for key, value in network.metadata().items():
        found = reader.fields[f"{network.arch}.{key}"].contents()
        wanted = float(np.float32(value)) if isinstance(value, float) else value
        if found != wanted:
            raise ValueError(f"{path}: {network.arch}.{key} is {found}, here {wanted}")
    weights = {}
    for t in reader.tensors:
        array = t.data
        if t.tensor_type == Q8_0:
            array = dequantize(array, Q8_0)
        weights[t.name] = torch.from_numpy(np.array(array).reshape(t.shape[::-1].tolist()))
    network.load_state_dict(weights)
    network.eval()
    return _read_tokenizer(reader)


def _read_tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = make_tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer
