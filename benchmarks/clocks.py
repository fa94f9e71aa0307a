"""How fast a GPU's clock runs, and whether its power holds it back, while something is measured.

A GPU that reaches its limit of power lowers its clock, by as much as the card at hand needs to. An H200 does so in passes with
many rows: one card to 1.7 GHz of 1.98 and another to 1.5, at 690 of 700 W. Work of milliseconds alone is over before the
clock falls. So what passes with many rows take is told with what the clock was.

    with Clocks(device) as clocks:
        began = clocks.now()
        ...
        clocks.facts(began)     {"clock_mhz": 1724, "watts": 691, "held_back": 1.0}

NVIDIA's tool tells it ten times a second, in a process of its own beside the measurement: what waits for the host is better
measured without it. Where there is no such tool there are no facts, and nothing fails.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from types import TracebackType
from typing import IO, NamedTuple

import torch

_QUERY = "clocks.sm,power.draw,clocks_event_reasons.active"
_EVERY_MS = 100
_BY_POWER = 0x4  # the bit of "a limit of power in software", as NVML has it


class _Sample(NamedTuple):
    at: float  # seconds, as `time.perf_counter` has them
    mhz: float
    watts: float
    is_held_back: bool


class Clocks:
    """Clock and power of one device, from entering it to leaving it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._samples: list[_Sample] = []
        self._tool: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Clocks:
        if self._device.type == "cuda":
            uuid = torch.cuda.get_device_properties(self._device).uuid
            self._listen(f"--id=GPU-{uuid}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tool is not None and self._reader is not None:
            self._tool.kill()
            self._reader.join()
            self._tool.communicate()

    @staticmethod
    def now() -> float:
        """A time to ask for facts since, in seconds."""
        return time.perf_counter()

    def facts(self, since: float) -> dict[str, float]:
        """Megahertz and watts since then, as means, and the share of samples in which power held the clock back; {} without any."""
        samples = [each for each in self._samples if each.at >= since]
        if not samples:
            return {}
        return {
            "clock_mhz": round(statistics.fmean(each.mhz for each in samples)),
            "watts": round(statistics.fmean(each.watts for each in samples)),
            "held_back": round(statistics.fmean(each.is_held_back for each in samples), 2),
        }

    def _listen(self, *which: str) -> None:
        """Have samples come, from the tool if it can be started."""
        words = ["nvidia-smi", *which, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            self._tool = subprocess.Popen(
                [*words, f"--loop-ms={_EVERY_MS}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            return
        assert self._tool.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._tool.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                mhz, watts, reasons = line.split(",")
                sample = float(mhz), float(watts), bool(int(reasons, 16) & _BY_POWER)
            except ValueError:  # a complaint, or a field that this device has not
                continue
            self._samples.append(_Sample(time.perf_counter(), *sample))
