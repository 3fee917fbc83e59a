"""The catalog: who is there (the registry), and who caches which prefix (the prefix catalog)."""
