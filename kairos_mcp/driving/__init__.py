"""The hinge: replay what is known, perform what is not."""
