"""Kairos and its peers, killed in the middle of the same job: adapters and tables for the package `loopfaults`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "loopfaults"))  # beside us, and installed by nobody yet
