"""The three roles as processes: `python -m services.prefill`, `services.relay`, `services.main`."""
