"""The parts of an opened house, and the acts on its runs."""
