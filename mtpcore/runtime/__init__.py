"""A model, its contexts, and what they process: one graph with its own memory."""
