"""The kernels of the `triton` backend, each in a file with the function that launches it."""
