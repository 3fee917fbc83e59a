"""A whole mesh in one process, without waiting: a virtual clock, and a network in memory for unmodified stubs and servicers.

Used by tests and benchmarks alone. Nothing in `pdd`, `services` or `gateway` imports it.
"""
