"""Contexts, linked hidden states and drafters for GGUF models."""
