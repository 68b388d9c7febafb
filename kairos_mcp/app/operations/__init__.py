"""Operations: what a person or a model does by hand, each declared once for every surface that offers it."""
