"""The demo models' training code: corpus, networks, optimiser, measurement and GGUF files."""
