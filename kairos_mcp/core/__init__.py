"""Values and pure rules: no I/O, no clock. Every other package may import it; it imports none of them."""
