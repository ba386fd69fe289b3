"""`make test`: the tests in two lanes side by side, since most wait for processes and clocks.

    tools/test.py                  everything
    tools/test.py ARGS...          one pytest with these arguments

The lane that is shown as it goes is the longer one; what the other said follows it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
ASIDE = ("tests/compatibility", "tests/unit")  # the rest is the other lane


def main() -> int:
    if sys.argv[1:]:
        return subprocess.run(pytest(*sys.argv[1:]), cwd=ROOT).returncode
    folders = sorted(
        {f"tests/{file.relative_to(TESTS).parts[0]}" for file in TESTS.rglob("test_*.py")}
    )
    rest = [folder for folder in folders if folder not in ASIDE]
    print(f"two lanes: {' '.join(ASIDE)} (shown at the end) and {' '.join(rest)}", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        aside = subprocess.Popen(pytest(*ASIDE), cwd=ROOT, stdout=said, stderr=said)
        try:
            shown = subprocess.run(pytest(*rest), cwd=ROOT).returncode
            code = aside.wait()
        finally:
            if aside.poll() is None:
                aside.terminate()  # an interrupt ends both
                aside.wait()
        said.seek(0)
        sys.stdout.buffer.write(said.read())
        sys.stdout.buffer.flush()
    failed = [lane for lane, result in ((ASIDE, code), (rest, shown)) if result]
    outcome = f"failed: {', '.join(' '.join(lane) for lane in failed)}" if failed else "passed"
    print(f"all tests: {outcome} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return 1 if failed else 0


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


if __name__ == "__main__":
    sys.exit(main())
