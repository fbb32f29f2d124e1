"""Model files that come with the package: `demo` and `demo:small` (see `tools/train_demo.py`)."""
