"""Arrays of strings as GGUF stores them: vocabularies hold hundreds of thousands."""

from mmap import mmap

def read_strings(
    data: bytes | mmap, begin: int, end: int, n: int, longest: int
) -> tuple[list[str], int]:
    """Read ``n`` strings, each after its length (little-endian uint64), from [begin, end).

    Bytes that are not UTF-8 come as surrogate escapes: vocabularies hold pieces of characters.

    Parameters
    ----------
    data : bytes
    begin, end : int
        Within ``data``.
    n : int
    longest : int
        Bytes of the longest string that is allowed.

    Returns
    -------
    (list of str, int)
        The strings and where they end; fewer than ``n`` where one does not fit or is too long.

    Raises
    ------
    IndexError
        ``begin`` and ``end`` are not within ``data``.
    """
