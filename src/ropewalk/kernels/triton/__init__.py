"""The Triton kernel for CUDA tensors."""
