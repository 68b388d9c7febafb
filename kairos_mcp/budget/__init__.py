"""The arithmetic of limits: units, what a step may reserve, what a branch may have. No I/O."""
