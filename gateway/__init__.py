"""The gateway: the only service that tokenises, owns token logs, decides handoffs and retries."""
