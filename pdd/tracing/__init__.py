"""Traces: what each process of the mesh did for one request and when, as spans for OpenTelemetry."""
