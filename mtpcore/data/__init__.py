"""Model files that come with the package: `demo.gguf` (see `tools/train_demo.py`)."""
