"""A person on the page who approves what the run of a link waits for: `page_visitor.py LINK HOME`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.page import Visitor

link, home = sys.argv[1:]
place, _, run_id = link.partition("#/runs/")
visitor = Visitor(place, Path(home)).enter()
item = visitor.waiting(run_id)
visitor.does("approve", run=run_id, key=item["key"], digest=item["digest"])
