# SPDX-License-Identifier: Apache-2.0
"""GPU utilisation while something runs: NVML if its Python module is there, else nvidia-smi."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading

PERIOD = 0.1


class GpuLoad:
    """Samples of the first visible GPU's utilisation in percent, between start and stop."""

    def __init__(self) -> None:
        """No sample yet; `start` may be called more than once and keeps adding."""
        self.samples: list[float] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample in a thread."""
        self._done.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End sampling."""
        self._done.set()
        if self._thread:
            self._thread.join(timeout=5)

    def median(self) -> float | None:
        """Median of the samples, None where none could be taken."""
        return statistics.median(self.samples) if self.samples else None

    def _sample(self) -> None:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        with contextlib.suppress(Exception):  # a figure that is missing must not end the run
            try:
                self._by_nvml(device)
            except ImportError:
                self._by_nvidia_smi(device)

    def _by_nvml(self, device: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        if device.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(device))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        while not self._done.wait(PERIOD):
            self.samples.append(float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

    def _by_nvidia_smi(self, device: str) -> None:
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=utilization.gpu"]
        query += ["--format=csv,noheader,nounits", f"-lms={round(PERIOD * 1e3)}"]
        with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()
            self._done.wait()
            process.terminate()

    def _read(self, stream) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):
                self.samples.append(float(line))
