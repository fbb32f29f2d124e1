"""What ``vs_llama_cpp.py`` is made of: engines, cells, results, and how they are shown."""
