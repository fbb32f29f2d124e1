"""The version of mtpcore."""

from importlib import metadata

__all__ = ["version"]


def version() -> str:
    """Return the installed distribution's version."""
    try:
        return metadata.version("mtpcore")
    except metadata.PackageNotFoundError:
        return "(not installed)"
