"""Acts: calls that change a context or a Cross, one at a time, as a whole or not at all."""
