"""A toy family for tests of the door: a trunk of square matrices and a head of one."""

import msgspec
import numpy as np

from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file
from mtpcore.plugin import DrafterSpec, Feed, Fit, ModelSpec, Outputs, first_of, hookimpl

WIDTH, N_VOCAB, N_LAYERS, EPS = 32, 64, 2, 1e-5


class Hparams:
    rotary_axes = 1

    def __init__(self, fields, tensors):
        self.n_vocab, self.width = tensors["token_embd.weight"].shape
        heads = [n for n in range(8) if f"blk.{n}.join.weight" in tensors]
        declared = fields.get("{arch}.n_heads_after", int, 0)
        n_blocks = fields.require("{arch}.block_count", int)
        self.n_layers = min(heads) if heads else n_blocks - declared
        self.n_drafter_blocks = len(heads)


def trunk(g, inputs, h):
    x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
    for n in range(h.n_layers):
        x = g.add(g.tap(f"layer_input:{n}", x), g.matmul(x, f"blk.{n}.mix.weight"))
    g.tap("wide", g.concat(x, x))
    hidden = g.tap("hidden", g.rms_norm(g.tap("residual", x), "output_norm.weight", EPS))
    return Outputs(logits=g.matmul(g.output_rows(hidden), "output.weight"))


def head(g, inputs, h):
    token = g.embed(inputs.tokens, "blk.{n}.embed.weight")
    x = g.matmul(g.concat(token, inputs["hidden"]), "blk.{n}.join.weight")
    x = g.rms_norm(x, "blk.{n}.norm.weight", EPS)
    return Outputs(logits=g.matmul(g.output_rows(x), "blk.{n}.head.weight"), hidden=x)


TRUNK = ModelSpec(
    name="toy",
    fit=Fit(architectures=frozenset({"toy"}), tensors=("token_embd.weight", "output_norm.weight")),
    hparams=Hparams,
    build=trunk,
    ties=(first_of("output.weight", "token_embd.weight"),),
)
HEAD = DrafterSpec(
    name="toy_head",
    fit=Fit(
        architectures=frozenset({"toy"}),
        tensors=("blk.{n}.join.weight", "blk.{n}.norm.weight"),
        count_key="{arch}.n_heads_after",
    ),
    build=head,
    feeds=(Feed(slot="hidden", recycle="hidden"),),
    ties=(
        first_of("blk.{n}.embed.weight", "token_embd.weight"),
        first_of("blk.{n}.head.weight", "output.weight", "token_embd.weight"),
    ),
    acceptance=(0.5, 0.9),
)


@hookimpl
def mtpcore_models():
    return [TRUNK]


@hookimpl
def mtpcore_drafters():
    return [HEAD]


def replaced(**changes):
    """Return the head's declaration with some fields changed."""
    return msgspec.structs.replace(HEAD, **changes)


def offering(*drafters, name="other"):
    """Return a plugin that declares these drafters."""

    class Plugin:
        __name__ = name

        @staticmethod
        @hookimpl
        def mtpcore_drafters():
            return list(drafters)

    return Plugin()


def trunk_tensors(seed=0, output=True):
    made = np.random.default_rng(seed)
    tensors = {"token_embd.weight": made.normal(size=(N_VOCAB, WIDTH))}
    for n in range(N_LAYERS):
        tensors[f"blk.{n}.mix.weight"] = made.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
    tensors["output_norm.weight"] = np.ones(WIDTH)
    if output:
        tensors["output.weight"] = made.normal(size=(N_VOCAB, WIDTH))
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def head_tensors(seed=1, n=N_LAYERS, **own):
    made = np.random.default_rng(seed)
    tensors = {
        f"blk.{n}.join.weight": made.normal(size=(WIDTH, 2 * WIDTH)).astype(np.float32),
        f"blk.{n}.norm.weight": np.ones(WIDTH, np.float32),
    }
    return tensors | {f"blk.{n}.{name}.weight": values for name, values in own.items()}


def write(path, tensors, *, heads=0, n_blocks=None, architecture="toy", types="F32", **metadata):
    """Write a file; ``heads`` is what its metadata says."""
    counts = {
        f"{architecture}.block_count": N_LAYERS + heads if n_blocks is None else n_blocks,
        f"{architecture}.embedding_length": WIDTH,
        **({f"{architecture}.n_heads_after": heads} if heads else {}),
    }
    write_model_file(path, architecture, counts | metadata, tensors, types)
    return path


def load(folder, tensors, *drafters, mtp=True, mtp_path=None, name="toy.gguf", **written):
    """Write a file and load it, with the toy plugin and another one of these drafters."""
    import toy

    plugins = Registry.of(toy, offering(*drafters))
    path = write(folder / name, tensors, **written)
    return load_model(path, mtp=mtp, mtp_path=mtp_path, plugins=plugins)
