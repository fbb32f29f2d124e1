"""Adapters for the models of the tests, with random values, as files in llama.cpp's layout."""

import numpy as np

from mtpcore.gguf import write_model_file


def write_adapter(
    path, architecture, shapes, *, seed=0, rank=4, alpha=8.0, size=0.3, outtype="F32", **metadata
):
    """Write an adapter of matrices by name and shape ([experts,] outputs, inputs).

    ``rank`` may be given by name. Returns what it adds, alpha / rank * B A, float64.
    """
    rng, tensors, changes = np.random.default_rng(seed), {}, {}
    for name, (*stack, n_out, n_in) in shapes.items():
        own = rank[name] if isinstance(rank, dict) else rank
        a = rng.standard_normal((*stack, own, n_in)).astype(np.float32) * np.float32(n_in**-0.5)
        b = rng.standard_normal((*stack, n_out, own)).astype(np.float32) * np.float32(
            size * own**-0.5
        )
        # A row of the table is a token's: the file has both halves the other way round.
        halves = (b, a.T.copy()) if name == "token_embd.weight" else (a, b)
        tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"] = halves
        changes[name] = (alpha / own if alpha else 1.0) * (b.astype(np.float64) @ a)
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": alpha}
    write_model_file(path, architecture, {**keys, **metadata}, tensors, outtype)
    return changes


def matrices_of(model, names=None):
    """Return shapes (outputs, inputs) of a model's matrices that can be adapted, by name.

    Tables of embeddings are among them, and biases and weights of norms as matrices of one row.
    """
    from mtpcore.graph import adapted_products, adapted_tables, adapted_vectors

    program = model.program()
    products = adapted_products(program) | adapted_tables(program) | adapted_vectors(program)
    return products if names is None else {name: products[name] for name in names}


def change_of(matrix):
    """Return what an adapter adds to a matrix at scale 1."""
    a, b = matrix.factors()
    return b @ a
