"""The five phases of a cycle, each a flow of its own, and the mandate's flow of several cycles."""
