"""A driver of Triton's for machines that have no GPU. Importing it imports no torch."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget


class NoDevice:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        """The device to compile for."""
        return self.target

    def get_current_device(self) -> int:
        """A number for each kind, by which Triton keeps what it has compiled."""
        return int(self.target.arch)

    def get_current_stream(self, device: int) -> int:
        """Any number."""
        return device
