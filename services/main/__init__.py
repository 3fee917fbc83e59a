"""Main decode (MD): takes the handoff and makes the rest of the answer."""
