"""The properties that the suite tries on fixed examples, tried on thousands of others.

    python stress/properties.py               with a seed of its own, which is printed
    python stress/properties.py --seed 7      the same examples again

Every test below tests/ that draws its examples with hypothesis.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the suite's properties on other examples.")
    parser.add_argument("--seed", type=int, help="of the examples; by default a new one")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "@given(" in path.read_text("utf-8"))
    print(f"seed {seed}; {len(files)} files", flush=True)
    profile = ("--hypothesis-profile=stress", f"--hypothesis-seed={seed}", "-m", "hypothesis")
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *profile, *map(str, files)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
