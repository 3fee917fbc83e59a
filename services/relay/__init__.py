"""Relay decode (RLD): decodes from the commit until main takes over."""
