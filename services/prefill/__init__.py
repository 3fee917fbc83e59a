"""Prefill (P): computes prompts and sends their KV to relay and main."""
