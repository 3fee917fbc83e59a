"""What prefill, relay and main tell Prometheus. Names, units and meanings are in docs/metrics.md."""
