"""Its place puts this folder on the path: modules that several rings share lie beside it."""
