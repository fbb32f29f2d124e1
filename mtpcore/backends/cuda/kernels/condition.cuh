/* Sets the condition of a part of a graph that may be left out; CUDA's device runtime has it. */
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
