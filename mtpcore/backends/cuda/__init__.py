"""The CUDA backend: kernels compiled at run time; nothing of CUDA is imported until it is used."""

from mtpcore.backends.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
