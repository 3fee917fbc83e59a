"""Load on a mesh through its public APIs, with locust: see docs/load-tests.md. `locustfile` is where locust starts."""
