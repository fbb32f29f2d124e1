"""What the CUDA kernels cost on paper: figures of GPUs, compiled code, launches, and the bounds."""
