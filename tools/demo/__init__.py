"""The demo model's training code: corpus, network, optimiser, measurement and GGUF file."""
