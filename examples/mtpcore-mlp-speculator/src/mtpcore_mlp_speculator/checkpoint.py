"""How speculators are published, and what their model files call it."""

from collections.abc import Iterable

from mtpcore.plugin import Checkpoint, Config, Key, Rename

PREFIXES = (("model.speculator.", ""), ("speculator.", ""))
HARMLESS = (
    ("n_candidates top_k_tokens_per_head method", "how other engines draft"),
    ("emb_dim inner_dim proj_dim input_hidden_dim tie_weights tie_lstm_embs", "the tensors say it"),
)
ARCHITECTURES = frozenset({"MLPSpeculatorPreTrainedModel", "ArcticMLPSpeculatorPreTrainedModel"})


def steps(config: Config) -> range:
    """Return the steps that have weights of their own."""
    return range(1 if config.get("tie_weights", default=False) else config.n_layers)


def projections(config: Config) -> Iterable[int]:
    """Return the steps that have projections of their own: the first one is of another width."""
    is_tied = config.get("tie_weights", default=False)
    return range(min(config.n_layers, 2) if is_tied else config.n_layers)


def width(config: Config) -> int:
    """Return the state's width; an LSTM's is the first of a list, written as 4096.4096."""
    own = config.get("inner_dim", default=0) or config["emb_dim"]
    return int(str(own).split(".")[0])


MLP_CHECKPOINT = Checkpoint(
    architectures=ARCHITECTURES,
    layers="n_predict",
    prefixes=PREFIXES,
    harmless=HARMLESS,
    tensors=(
        Rename("emb.{n}.weight", "blk.{n}.token_embd.weight", layers=steps),
        Rename("proj.{n}.weight", "blk.{n}.proj.weight", layers=projections),
        Rename("ln.{n}.weight", "blk.{n}.norm.weight", layers=steps),
        Rename("ln.{n}.bias", "blk.{n}.norm.bias", layers=steps),
        Rename("head.{n}.weight", "blk.{n}.output.weight", layers=steps),
    ),
    metadata=(
        ("{arch}.embedding_length", width),
        ("{arch}.scale_input", Key("scale_input", False)),
    ),
)
LSTM_CHECKPOINT = Checkpoint(
    architectures=ARCHITECTURES,
    requires=("tie_lstm_embs",),
    layers="n_predict",
    prefixes=PREFIXES,
    harmless=HARMLESS,
    tensors=(
        Rename("forget_emb.0.weight", "token_embd.weight"),
        Rename("projs.{n}.weight", "blk.{n}.proj.weight", layers=projections),
        Rename("cell_ln.0.weight", "blk.0.cell_norm.weight"),
        Rename("cell_ln.0.bias", "blk.0.cell_norm.bias"),
        Rename("state_ln.0.weight", "blk.0.state_norm.weight"),
        Rename("state_ln.0.bias", "blk.0.state_norm.bias"),
        Rename("head.0.weight", "output.weight"),
    ),
    metadata=MLP_CHECKPOINT.metadata,
)
