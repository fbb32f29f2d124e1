"""Model files that `mtpcore` finds by their names, `demo:deepseek` for `demo-deepseek.gguf`."""
