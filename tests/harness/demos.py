"""The models in the package that a user loads by name."""

DEMOS = ["demo", "demo:deepseek", "demo:mimo", "demo:mimo2", "demo:eagle3"]
