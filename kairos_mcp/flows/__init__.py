"""The loops as plain generators: they yield steps and are sent answers, and do no I/O."""
