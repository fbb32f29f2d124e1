"""Arrays that are handed to other libraries, and taken from them, by DLPack."""

__all__ = ["Taken", "make_capsule"]

def make_capsule(
    owner: object,
    address: int,
    shape: tuple[int, ...],
    kind: str,
    n_bits: int,
    device: tuple[int, int],
    *,
    versioned: bool,
    read_only: bool,
    copied: bool,
) -> object:
    """Return a capsule with a C-contiguous array, for ``__dlpack__`` to hand out.

    Parameters
    ----------
    owner : object
        Lives until whoever takes the array lets go of it.
    address : int
        Of the first value.
    shape : tuple of int
    kind, n_bits : str, int
        The type: NumPy's ``kind``, one of "iuf", and the bits of a value.
    device : tuple of int
        DLPack's numbers of the kind of device, and of the device.
    versioned : bool
        Whether the capsule is that of DLPack 1; an older one says neither of the following.
    read_only, copied : bool
        Whether the array must not be written to, and whether it was copied for this.
    """

class Taken:
    """An array that another library handed out; it is let go of when this is gone.

    Parameters
    ----------
    capsule : object
        What ``__dlpack__`` returned; it can be taken once.

    Raises
    ------
    BufferError
        It is no such capsule, was taken before, or is of a version that is not known.

    Attributes
    ----------
    address : int
        Of the first value, as the device sees it.
    shape : tuple of int
    strides : tuple of int, or None
        Of each axis, in values; None: those of a C-contiguous array.
    code, bits, lanes : int
        The type, in DLPack's numbers.
    device : tuple of int
        The kind of device, and its number.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    lanes: int
    device: tuple[int, int]

    def __init__(self, capsule: object) -> None: ...
