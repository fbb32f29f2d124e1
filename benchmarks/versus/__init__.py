"""The parts of ``vs_llama_cpp.py``: engines, cells, results, table and chart."""
