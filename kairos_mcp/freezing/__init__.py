"""From a request to a frozen spec, and from a spec to the flow that it says."""
