"""Calibration: what matrices are multiplied with in texts, by which files are quantised."""
