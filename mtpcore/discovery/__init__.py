"""Plugins: which are installed, and which ones fit a model file."""
