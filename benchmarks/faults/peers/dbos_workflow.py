"""What both peers on DBOS have in common: the workflow `job` is started once, looked at, and sent decisions."""

import sqlite3
import time
from contextlib import closing

from dbos import DBOS, SetWorkflowID
from tools import GOAL

ASKS_S = 0.5
"""How long a question has to stand: one whose decision is under way to a workflow that goes on stands no longer."""


def configure(folder, database=None):
    """Keep the workflows in a PostgreSQL database, or in a file."""
    if database:
        DBOS(config={"name": "peer", "system_database_url": database, "log_level": "ERROR"})
        return
    file = folder / "peer.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = wal")  # stays with the file; DBOS itself leaves it at `delete`
    DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"})


async def decided():
    """Wait within the workflow until a person has decided."""
    await DBOS.set_event_async("asks", True)
    decision = None
    while decision is None:
        decision = await DBOS.recv_async("decision", timeout_seconds=86_400)
    await DBOS.set_event_async("asks", False)
    return decision == "approve"


class DbosSystem:
    def __init__(self, work):
        self.work, self.id = work, "job"

    def open(self):
        DBOS.launch()  # goes on with what was pending
        return self.look()

    def _status(self):
        known = DBOS.list_workflows(workflow_ids=[self.id])
        return known[0].status if known else None

    def _quiet(self):
        """Look until the workflow has ended or asks."""
        asks_since = None
        while True:
            status = self._status()
            if status == "SUCCESS":
                return {"status": "ended"}
            if status not in ("PENDING", "ENQUEUED"):
                return {"status": "failed", "error": str(status)}
            asks = DBOS.get_event(self.id, "asks", timeout_seconds=0)
            asks_since = (asks_since or time.monotonic()) if asks else None
            if asks_since and time.monotonic() - asks_since > ASKS_S:
                return {"status": "waiting"}
            time.sleep(0.03)

    def start(self):
        with SetWorkflowID("job"):  # its own way to be started once
            DBOS.start_workflow(self.work, GOAL)
        return self._quiet()

    def look(self):
        return self._quiet() if self._status() else {"status": "idle"}

    def resume(self):
        if not self._status():
            return self.start()
        if self._status() == "ERROR":  # its documented way: a fork from the step that failed
            failed = [each for each in DBOS.list_workflow_steps(self.id) if each["error"] is not None]
            self.id = DBOS.fork_workflow(self.id, failed[-1]["function_id"] if failed else 1).workflow_id
        else:
            DBOS.resume_workflow(self.id)
        return self._quiet()

    def answer(self, decision):
        DBOS.send(self.id, decision, "decision")
        deadline = time.monotonic() + 5
        while DBOS.get_event(self.id, "asks", timeout_seconds=0) and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._quiet()
