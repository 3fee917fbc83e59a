"""Checks a running deployment and says what to fix: `collect` gathers facts, `checks` judges them, `show` tells them."""
