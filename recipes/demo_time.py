"""Print about how long `make demo` will take on this machine, from products of matrices as large as SmolLM2's."""

import time

import torch

# A machine that makes so many products a second ran the demo in so many seconds (two AVX2 cores, 2026-11-28).
PRODUCTS, SECONDS = 425.0, 240
MEASURED_S = 2.0


def products_per_second() -> float:
    """Return the rate over MEASURED_S seconds, with all threads and whatever else runs here."""
    rows, weights = torch.ones(256, 576), torch.ones(576, 1536)
    done, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < MEASURED_S:
        torch.mm(rows, weights)
        done += 1
    return done / passed


if __name__ == "__main__":
    minutes = SECONDS * PRODUCTS / products_per_second() / 60
    print(
        f"the demo takes about {max(1, round(minutes))} minutes here with what else runs now: data, a probe, training, a second probe",
        flush=True,
    )
