"""Engines: one interface (`base`), one pure scheduler (`schedule`), one shell (`batch`), and a model per engine."""
