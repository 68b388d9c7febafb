"""The commands and their options as typer reads them; each hands over to the file beside this folder that does it."""
