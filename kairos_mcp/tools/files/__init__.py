"""Tools that read, search and change files, and the parts that make changes atomic."""
