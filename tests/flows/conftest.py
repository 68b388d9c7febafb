"""Its place puts this folder on the path: feeding.py and briefs.py are shared with the folders beneath it."""
