"""Published folders that somebody has tampered with: JSON, headers of tensors, whole files."""

import json
import math
import os
import random

from harness.sound_checkpoints import names, write_sound

HUGE = 10**4000
NUMBERS = (
    *(0, 1, 2, 3, 5, 7, 33, 255, 1024, 1025, 65_535, 1 << 20, (1 << 20) + 1, 1 << 24, 1 << 31),
    *((1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 70),
    *(-1, -2, -(1 << 31), -(1 << 63), -(1 << 64), HUGE, -HUGE),
    *(0.0, -0.0, -1.0, 0.5, 4.0, 1e-30, 1e30, 1e39, 1e300, -1e300),
    *(math.nan, math.inf, -math.inf),
)
TEXTS = (
    *("", " ", "a", "ab", "a b", "a b c", "0", "4", "1e5", "nan", "none", "null", "true", "yarn"),
    *("linear", "llama3", "default", "softmax", "\0", "a\0b", "\ud800", "\udcff", "\ufffe"),
    *("x" * 70_000, "{{ ", "{% for %}", "{n}", "{e}", "../../x", "/etc/passwd", "\u2581"),
    *("BPE", "Unigram", "ByteLevel", "Split", "Sequence", "<|end|>", "Qwen2ForCausalLM"),
)
LISTS = (
    *([], [None], [[]], [0], [1], [1, 1, 1], [0, 0], [-1], [1 << 64], ["a"], [["a", "b"]]),
    *([math.nan], [True, 2], [0.5, "a"]),
    *({}, {"a": 1}, {"type": "yarn"}, {"rope_type": "llama3"}, {"content": 5}, {"id": 3}, {"": {}}),
    *(list(range(3000)), ["a"] * 3000, {str(i): i for i in range(3000)}, [[], 0, "", None]),
)  # fmt: skip
OTHERS = (None, True, False)
KINDS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8", "U16",
         "BOOL", "F4", "C64", "", "f32", None, 3)  # fmt: skip
# What the originals' configurations may leave out.
OPTIONAL = (
    "rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "head_dim",
    "num_key_value_heads", "tie_word_embeddings", "quantization_config", "num_experts",
    "num_local_experts", "mlp_only_layers", "decoder_sparse_step", "first_k_dense_replace",
    "num_nextn_predict_layers", "attention_bias", "use_qk_norm", "text_config", "bos_token_id",
    "eos_token_id", "pad_token_id", "_name_or_path", "sliding_window", "n_shared_experts",
    "norm_output", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "q_lora_rank",
    "draft_vocab_size", "mlp_bias", "n_group", "topk_group",
)  # fmt: skip
SMALL = (
    "tokenizer_config.json", "generation_config.json", "model.safetensors.index.json", "README.md",
    "chat_template.jinja", "chat_template.json", "merges.txt", "additional_chat_templates",
    "special_tokens_map.json",
)  # fmt: skip


def write_damaged(folder, seed):
    """Write a folder that is damaged in one to three ways; return its options and its name.

    The same seed gives the same bytes.
    """
    chance = random.Random(seed)
    name = names()[seed % len(names())]
    options = write_sound(folder, name)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        act = chance.choices((_config, _tokenizer, _small, _tensors, _file), (8, 8, 3, 5, 2))[0]
        act(chance, folder, options)
    if "target" not in options and chance.random() < 0.1:
        options["mtp"] = chance.choice(("only", "drop"))
    options["outtype"] = chance.choice(("f32", "f16", "bf16", "q8_0", "q4_0"))
    return options, name


def _value(chance):
    pool = chance.choices((NUMBERS, TEXTS, LISTS, OTHERS), (5, 3, 3, 1))[0]
    return chance.choice(pool)


def _places(value, limit=400):
    """Yield (container, key) of values in a document, some of each long container."""
    stack = [value]
    while stack:
        one = stack.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        step = max(1, len(keys) // limit)
        for key in keys[::step]:
            yield one, key
            if isinstance(one[key], dict | list):
                stack.append(one[key])


def _mutate(chance, document):
    """Change a document in place, or return another."""
    places = list(_places(document))
    if not places or chance.random() < 0.01:
        return _value(chance)
    # Short containers are hit as often as long ones.
    owners = {id(owner): owner for owner, _ in places}
    owner = chance.choice(list(owners.values()))
    key = chance.choice([k for o, k in places if o is owner])
    old = owner[key]
    act = chance.randrange(9)
    if act == 0:
        del owner[key]
    elif act == 1 and isinstance(owner, dict):
        owner[chance.choice((*TEXTS, str(key) + "x"))] = owner.pop(key)
    elif act == 1:
        owner.insert(key, old)
    elif act == 2 and isinstance(old, int | float) and not isinstance(old, bool):
        owner[key] = chance.choice((old + 1, old - 1, 2 * old, 0, -old, float(old), str(old)))
    elif act == 3:
        other, name = chance.choice(places)
        owner[key], other[name] = other[name], old
    elif act == 4:
        owner[key] = chance.choice(([old], {"a": old}, str(old), [old] * 70))
    elif act == 5 and isinstance(old, list | dict):
        old.clear()
    else:
        owner[key] = _value(chance)
    return document


def _spell(document):
    """Return JSON; a container that holds itself by a swap is cut."""
    try:
        return json.dumps(document)
    except (ValueError, RecursionError):
        return '{"a": ' * 2000


def _rewrite(chance, path, change):
    """Change a JSON file, or its bytes."""
    data = path.read_bytes()
    if chance.random() < 0.12:
        path.write_bytes(_scramble(chance, data))
        return
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    path.write_text(_spell(change(document)), errors="surrogatepass")


def _scramble(chance, data):
    act = chance.randrange(9)
    at = chance.randrange(len(data)) if data else 0
    if act == 0:
        return data[:at]
    if act == 1:
        return data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :]
    if act == 2:
        return data.decode(errors="replace").encode("utf-16")
    if act == 3:
        return b"\xef\xbb\xbf" + data
    if act == 4:
        return chance.choice((b"[", b'{"a":', b"[[],")) * 100_000
    if act == 5:
        return data[:at] + b"\xff\xfe" + data[at:]
    if act == 6:  # one key twice
        return data.replace(b"{", b"{" + chance.choice((b'"vocab": {}, ', b'"model": 3, ')), 1)
    if act == 7:
        return b"9" * 5000
    return b""


def _config(chance, folder, options):
    path = chance.choice([folder, *(options[k] for k in options if k == "target")]) / "config.json"

    def change(document):
        if isinstance(document, dict) and chance.random() < 0.2:
            document[chance.choice(OPTIONAL)] = _value(chance)
            return document
        if isinstance(document, dict) and chance.random() < 0.5:
            numbers = [k for k, v in document.items() if isinstance(v, int | float)]
            if numbers:
                document[chance.choice(numbers)] = chance.choice(NUMBERS)
                return document
        return _mutate(chance, document)

    if path.is_file():
        _rewrite(chance, path, change)


def _tokenizer(chance, folder, options):
    path = options.get("target", folder) / "tokenizer.json"

    def change(document):
        try:
            return _retell(chance, document)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            return _mutate(chance, document)  # it is no tokenizer any more

    if path.is_file():
        _rewrite(chance, path, change)


def _retell(chance, document):
    """Change what a tokenizer says."""
    model, added = document["model"], document["added_tokens"]
    vocab, merges = model["vocab"], model["merges"]
    text = chance.choice(list(vocab))
    n = len(vocab) + len(added)
    act = chance.randrange(14)
    if act < 4:
        return _mutate(chance, document)
    if act == 4:
        vocab[text] = chance.choice((0, 1, n, n + 1, 10 * n, 1 << 20, (1 << 20) - 1, 1 << 32, -1))
    elif act == 5:
        del vocab[text]
    elif act == 6:
        vocab[chance.choice(TEXTS)] = vocab.pop(text)
    elif act == 7:
        strange = (["zq", "a"], ["", "a"], ["", ""], "a", "", " ", "a  b", ["a"], ["a", "b", "c"],
                   "a b", 3, None, [1, 2], ["a", None], [" ", " "], ["a b", "c"], ["\ud800", "a"],
                   {"a": "b"}, [["a"], "b"], [[], []])  # fmt: skip
        merges.insert(chance.choice((0, len(merges))), chance.choice(strange))
    elif act == 8:
        model["merges"] = chance.choice(([], None, {}, "a b", [[]], [0], merges * 300, [merges]))
    elif act == 9:
        one = chance.choice(added)
        one["id"] = chance.choice((0, n - 1, n, n + 5, 1 << 20, 1 << 31, 1 << 64, -1, 2.0, "3"))
    elif act == 10:
        added.append({"id": n, "content": chance.choice((*TEXTS, text)), "special": True})
    elif act == 11:
        model["vocab"] = chance.choice(
            ({}, None, [], [["a", 1]], {"a": 0}, {"": 0}, dict(added[0]))
        )
    elif act == 12:
        steps = ({"type": "Split", "pattern": {"Regex": "("}}, {"type": "Metaspace"}, None, [],
                 {"type": "ByteLevel", "use_regex": 3}, {"type": "Split", "pattern": "x"}, "x", {},
                 {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 3}, 3,
                 {"type": "Sequence", "pretokenizers": None}, {"pretokenizers": 3},
                 {"type": "Sequence", "pretokenizers": [3]}, {"normalizers": [3]})  # fmt: skip
        document[chance.choice(("pre_tokenizer", "normalizer"))] = chance.choice(steps)
    else:
        document["post_processor"] = chance.choice((
            [], 3, {"type": "TemplateProcessing"}, {"type": "RobertaProcessing", "cls": []},
            {"type": "TemplateProcessing", "single": [3, 4]}, {"processors": [3]},
            {"processors": 3},
            {"type": "TemplateProcessing", "single": [{}, {}], "pair": [{}]},
            {"type": "TemplateProcessing", "single": [], "pair": [{"Sequence": {"id": "A"}}]},
            {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": i}} for i in "ABBB"]},
        ))  # fmt: skip
    return document


def _small(chance, folder, options):
    """Change one of the files that may be missing, or write it."""
    path = folder / chance.choice(SMALL)
    if os.path.lexists(path) and not path.is_file():
        return  # it is a pipe by now, or a link to nowhere
    if path.name == "additional_chat_templates":
        path.mkdir(exist_ok=True)
        (path / "x.jinja").write_bytes(chance.choice((b"", b"\xff", b"{{ a }}")))
    elif path.suffix != ".json":
        card = chance.choice(("- a", "a: b", "name: [1]", "base_model: 3", "base_model: [[3]]",
                              "tags: {a: b}", "language: 2024-01-01", "license: [1, 2]", "name: 3",
                              "a: &a [*a]", "a: " + "[" * 3000, "? [a]\n: b", "datasets: [3]",
                              "name: \"\\ud800\"", "model-index: 7"))  # fmt: skip
        merges = chance.choice(("#version\na b\nzq x\n", "a", "\xff", "a b c\n"))
        text = f"---\n{card}\n---\n" if path.suffix == ".md" else merges
        path.write_bytes(text.encode(chance.choice(("utf-8", "utf-16", "latin-1"))))
    elif path.is_file():
        _rewrite(chance, path, lambda document: _mutate(chance, document))
    else:
        made = {
            chance.choice(("chat_template", "weight_map", "top_k", "eos_token")): _value(chance)
        }
        path.write_text(_spell(made), errors="surrogatepass")


def _tensors(chance, folder, options):
    """Change the header of a file of tensors, or cut it."""
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not files:
        return
    path = chance.choice(files)
    data = path.read_bytes()
    if path.is_symlink():
        path.unlink()
    act = chance.randrange(8)
    if act == 0:
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif act == 1:
        length = chance.choice((0, 1, 7, len(data), 1 << 31, (1 << 64) - 1, len(data) - 8))
        path.write_bytes(length.to_bytes(8, "little") + data[8:])
    elif act == 2:
        values = bytearray(data)
        for _ in range(20):
            values[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(values))
    else:
        path.write_bytes(_restate(chance, data))


def _restate(chance, data):
    """Return a file of tensors whose header says something else."""
    begin = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:begin])
        name = chance.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        n_rows = entry["shape"][0] if entry["shape"] else 1
        act = chance.randrange(10)
        if act == 0:
            entry["dtype"] = chance.choice(KINDS)
        elif act == 1:
            entry["shape"] = chance.choice(([], [0], [n_rows], [1, *entry["shape"]], [1] * 5, None,
                [*reversed(entry["shape"])], [*entry["shape"], 1], [1 << 62, 0], [1 << 32] * 2,
                [-1, *entry["shape"]], [2.5], "x", [math.prod(entry["shape"])]))  # fmt: skip
        elif act == 2:
            at = entry["data_offsets"]
            entry["data_offsets"] = chance.choice((
                [at[1], at[0]], [at[0] + 1, at[1]], [0, 0], [0], [at[0], at[1] + 4], [-1, at[1]],
                [0, at[1] - at[0]], [1 << 63, 1 << 64]))  # fmt: skip
        elif act == 3:
            header[name + "x"] = header.pop(name)
        elif act == 4:
            del header[name]
        elif act == 5:
            other = chance.choice(list(header))
            header[name], header[other] = header[other], entry
        elif act == 6:
            header[chance.choice(("a" * 600, "\0", "model.layers.999999999999.x", "\u0661"))] = {
                "dtype": "F32", "shape": [0], "data_offsets": [len(data) - begin] * 2}  # fmt: skip
        elif act == 7:
            # Another type of as many bytes.
            wide = {"F32": "I32", "BF16": "I16", "F8_E4M3": "I8", "I64": "F64", "BOOL": "F8_E4M3"}
            entry["dtype"] = wide.get(entry["dtype"], "U8")
        elif act == 8:
            entry["dtype"] = {"F32": "BF16", "BF16": "F8_E4M3"}.get(entry["dtype"], entry["dtype"])
            entry["shape"] = [*entry["shape"][:-1], 2 * entry["shape"][-1]]
        else:
            header = _mutate(chance, header)
        text = _spell(header).encode(errors="surrogatepass")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return data[:-1]
    return len(text).to_bytes(8, "little") + text + data[begin:]


def _file(chance, folder, options):
    """Put something else in place of a file."""
    files = sorted(path for path in folder.iterdir() if not path.is_dir())
    path = chance.choice([*files, folder / chance.choice(SMALL)])
    if path.is_dir():
        return
    path.unlink(missing_ok=True)
    act = chance.randrange(7)
    if act == 0:
        os.mkfifo(path)
    elif act == 1:
        path.mkdir()
    elif act == 2:
        path.symlink_to(folder / "nowhere")
    elif act == 3:
        path.symlink_to("/dev/zero")
    elif act == 4:
        path.symlink_to(path)
    elif act == 5 and path.name.endswith("index.json"):
        name = chance.choice(("../../x", "/etc/passwd", "..", "", ".", "a\0b", "x" * 300, "a/b"))
        path.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
