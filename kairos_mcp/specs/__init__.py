"""From a request to the stored spec of a run, and from a spec to the flow that it describes."""
