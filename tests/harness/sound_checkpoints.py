"""Small published folders of every family that can be converted, to be damaged."""

import json
import shutil
from functools import cache

import mtpcore_glm_nextn
import numpy as np

from harness import deepseek, dflash, eagle3, peagle, qwen, trunks
from harness.fixtures import DATA, checkpoint
from harness.generated import TINY, make_tensors
from harness.published import Raw, scaled, small_config, small_tensors, tokenizer, write_checkpoint
from mtpcore.gguf.vocabulary import byte_alphabet

TEMPLATE = "{% for m in messages %}<|end|>{{ m.content }}{% endfor %}"
CARD = "---\nlicense: apache-2.0\nlanguage:\n- en\nbase_model: somebody/some-model\n---\nA model.\n"
N_BYTES = 256


def byte_level(n_vocab):
    """Return a byte-level ``tokenizer.json`` with every byte, some merges and three added tokens.

    Ids between them and ``n_vocab`` have no token.
    """
    made = tokenizer()
    texts = [*byte_alphabet(), "ab", "\u0120a", "\u0120ab", "abc"]
    added = ("<|end|>", "<|user|>", "<tool>")
    assert len(texts) + len(added) <= n_vocab
    model = {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(texts)},
        "merges": [["a", "b"], ["\u0120", "a"], ["\u0120a", "b"], ["ab", "c"]],
    }
    tokens = [
        {"id": len(texts) + i, "content": text, "special": text != "<tool>"}
        for i, text in enumerate(added)
    ]
    ending = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    processor = {"type": "TemplateProcessing", "single": [text, ending], "pair": []}
    return made | {"model": model, "added_tokens": tokens, "post_processor": processor}


def pieces(n_vocab):
    """Return a ``tokenizer.json`` of the SentencePiece kind."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(N_BYTES))]
    texts += ["\u2581", "a", "b", "ab", "\u2581ab"]
    assert len(texts) <= n_vocab
    steps = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    return {
        "added_tokens": [{"id": i, "content": texts[i], "special": True} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": ["a b", "\u2581 ab"],
        },
    }


def write_sound(folder, name):
    """Write a folder; return what ``convert`` takes besides, and the tensors' file."""
    return ORIGINALS[name](folder)


def _more(folder, **config):
    """Write the small files beside a checkpoint."""
    made = {"eos_token": "<|end|>", "bos_token": None, "add_bos_token": False} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(made))
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 20, "temperature": 0.6}))
    (folder / "README.md").write_text(CARD)
    return {}


def _qwen2(folder):
    config = small_config(vocab_size=272, rope_theta=1000000, eos_token_id=260)
    write_checkpoint(folder, config, small_tensors(config), byte_level(272))
    return _more(folder, chat_template=TEMPLATE)


def _in_parts(folder):
    config = small_config(vocab_size=272)
    write_checkpoint(folder, config, small_tensors(config), byte_level(272), n_files=3)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return _more(folder)


def _eight_bits(folder):
    config = small_config(vocab_size=272)
    config["quantization_config"] = {"weight_block_size": [16, 16]}
    made = {}
    for name, values in small_tensors(config).items():
        if ".mlp." in name:
            codes, scales = scaled(values, 16)
            made |= {name: Raw("F8_E4M3", codes), name + "_scale_inv": scales}
        else:
            made[name] = values
    write_checkpoint(folder, config, made, byte_level(272))
    return _more(folder)


def _pieces(folder):
    config = small_config(vocab_size=272, architectures=["LlamaForCausalLM"])
    tensors = {n: t for n, t in small_tensors(config).items() if not n.endswith(".bias")}
    write_checkpoint(folder, config, tensors, pieces(272))
    return _more(folder, eos_token="</s>", bos_token="<s>", add_bos_token=True)


def _trunk(name):
    def write(folder):
        c = trunks.CONFIGS[name]
        tensors = trunks.published(c, trunks.checkpoint(c, seed=0))
        write_checkpoint(folder, trunks.configuration(c), tensors, tokenizer(trunks.N_VOCAB))
        return _more(folder)

    return write


def _hybrid(name):
    def write(folder):
        s = qwen.SHAPES[name]
        tensors = qwen.published(s, qwen.weights(s))
        write_checkpoint(folder, qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
        return _more(folder)

    return write


def _deepseek(name):
    def write(folder):
        c = deepseek.VARIANTS[name]
        tensors = deepseek.published(deepseek.make_weights(c), deepseek.N_TRUNK + 1)
        write_checkpoint(folder, deepseek.config_of(c), tensors, tokenizer(deepseek.V))
        return _more(folder)

    return write


def _glm(folder):
    s = TINY
    config = small_config(
        architectures=["Glm4MoeForCausalLM"],
        attention_bias=True,
        first_k_dense_replace=1,
        head_dim=s.head_width,
        hidden_size=s.width,
        intermediate_size=s.n_ff,
        moe_intermediate_size=s.n_ff,
        n_routed_experts=s.n_experts,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=2,
        num_nextn_predict_layers=1,
        routed_scaling_factor=1.5,
        vocab_size=s.n_vocab,
    )
    made = make_tensors("glm4moe", "F32", s)
    tensors = {name: values.view(np.float32) for name, values in made.items()}
    specs = (mtpcore_glm_nextn.TRUNK, mtpcore_glm_nextn.NEXTN)
    tables = [rename for spec in specs for rename in spec.checkpoint.tensors]
    published = _undo(tables, tensors, s.n_layers + 1)
    write_checkpoint(folder, config, published, tokenizer(s.n_vocab))
    return _more(folder)


def _undo(renames, tensors, n_blocks):
    """Return a model file's tensors as the tables call them in a checkpoint."""
    made = {}
    for rename in renames:
        for n in map(str, range(n_blocks)):
            values = tensors.get(rename.tensor.replace("{n}", n))
            source = rename.source.replace("{n}", n)
            if values is not None and "{e}" in source:
                made |= {source.replace("{e}", str(e)): one for e, one in enumerate(values)}
            elif values is not None:
                made[source] = values
    return made


def _drafter(make, variant, name):
    def write(folder):
        make(folder, variant)
        (folder / f"{name}.gguf").unlink()
        for file in (folder / name).iterdir():
            file.rename(folder / file.name)
        (folder / name).rmdir()
        return {"target": folder / "target"}

    return write


def _fixture(name):
    def write(folder):
        folder.mkdir(parents=True)
        for file in checkpoint(name).iterdir():
            if file.suffix == ".json" and (DATA / name / file.name).exists():
                shutil.copyfile(file, folder / file.name)
            else:
                (folder / file.name).symlink_to(file)
        return {}

    return write


ORIGINALS = {
    "qwen2": _qwen2,
    "qwen2 in parts": _in_parts,
    "qwen2 in eight bits": _eight_bits,
    "llama with pieces": _pieces,
    "llama 3.1 rotation": _trunk("llama 3.1 rotation"),
    "llama with experts": _trunk("llama with experts"),
    "qwen3, tied": _trunk("qwen3, tied"),
    "qwen3 with some experts": _trunk("qwen3 with some experts"),
    "V3, YaRN": _deepseek("V3, YaRN"),
    "V2-Lite": _deepseek("V2-Lite"),
    "GLM-4.7-Flash": _deepseek("GLM-4.7-Flash"),
    "glm": _glm,
    "eagle3": _drafter(eagle3.write_head, eagle3.VARIANTS["vLLM"], "head"),
    "eagle3, llama3 rotation": _drafter(
        eagle3.write_head, eagle3.VARIANTS["llama3 rotation"], "head"
    ),
    "dflash": _drafter(dflash.write_drafter, dflash.VARIANTS["speculators' windows"], "drafter"),
    "dspark": _drafter(dflash.write_drafter, dflash.VARIANTS["dspark"], "drafter"),
    "xpress": _drafter(dflash.write_drafter, dflash.VARIANTS["xpress"], "drafter"),
    "peagle": _drafter(peagle.write_head, peagle.VARIANTS["speculators"], "head"),
    "qwen3.5": _hybrid("irregular layers, tied"),
    "qwen3.5 with experts": _hybrid("experts in one piece"),
    "qwen3-next": _hybrid("grouped"),
    "mimo": _fixture("mimo-14"),
    "mimo2": _fixture("mimo2-15"),
}


@cache
def names():
    """Return the originals' names, small ones several times: each conversion of others is long."""
    small = [name for name in ORIGINALS if name not in ("mimo", "mimo2")]
    return (*small, *small, *small, "mimo", "mimo2")
