"""Requests for a mesh: generated workloads, replayed traces, who asks them, and what a perfect cache would have made of them."""
