"""The law of spending: amounts, what a step may hold of an account, what a branch may have. No I/O."""
