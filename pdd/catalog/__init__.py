"""The catalog: who is there (the registry)."""
