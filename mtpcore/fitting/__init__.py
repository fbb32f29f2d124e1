"""Fitting drafters: a head for a model that has none, taught by the model itself."""
