"""The parts `spark` and `capture`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures.run import Tell
from benchmarks.scenarios import capture, spark

MB = 1024**2
CAPTURE_RATE, CAPTURE_S, WINDOW_MB = 40.0, 90.0, 100
IDLE_S, SETTLE_S = 60.0, 90.0


def measure_spark(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    tell("Spark reads and writes")
    found = spark.run(place, *((0.1, 1) if trial else (1.0, 3)))
    figures: dict[str, Any] = {"sink_per_s": found["sink"]["batch"]}
    for size, slug in (("100 B", "100b"), ("1 KB", "1kb")):
        rates = found[size]
        figures |= {
            f"batch_{slug}_per_s": rates["batch"],
            f"batch_{slug}_share": rates["batch"] / rates["ceiling"],
            f"stream_{slug}_per_s": rates["stream"],
            f"stream_{slug}_share": rates["stream"] / rates["batch"],
        }
    return figures


def measure_capture(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    rate, seconds = (2.0, 20.0) if trial else (CAPTURE_RATE, CAPTURE_S)
    for name in ("encoder", "ingress", "idle"):
        (place / name).mkdir()
    tell("the encoder of Capture")
    encoder = capture.encoder(place / "encoder")
    tell(f"Capture beside {rate:.0f} MB/s for {seconds:.0f} s")
    behind = capture.ingress(place / "ingress", rate, seconds, WINDOW_MB * MB)
    tell("Capture while nothing comes")
    times = (
        {"seconds": 5.0, "settle_s": 1.0} if trial else {"seconds": IDLE_S, "settle_s": SETTLE_S}
    )
    cpu, idle_mb, idle_max_mb = capture.idle(place / "idle", 60, **times)
    return {
        "rate_mb_per_s": rate,
        "seconds": seconds,
        "behind_first_mb": behind["first"],
        "behind_second_mb": behind["second"],
        "behind_max_mb": behind["most"],
        "busy_mb": behind["memory_mb"],
        "drained_s": behind["drained_s"],
        "encoder_mb_per_s": encoder["deflate"],
        "encoder_null_mb_per_s": encoder["null"],
        "idle_cpu": cpu,
        "idle_mb": idle_mb,
        "idle_max_mb": idle_max_mb,
    }
