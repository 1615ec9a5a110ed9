"""Makes the benchmarks, which are scripts and no package, importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
