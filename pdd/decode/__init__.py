"""What relay and main have in common: handles, sessions, step frames. Started by `services.relay` and `services.main`."""
