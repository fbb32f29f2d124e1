"""What depends on the operating system: each kind of it in one module, for all systems.

Each is type-checked for Linux, macOS and Windows. Only Linux's half is run by tests.
"""
