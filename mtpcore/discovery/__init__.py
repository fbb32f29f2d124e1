"""Plugins: who is there, and which one a model file needs."""
