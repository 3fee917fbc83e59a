"""What the services of the mesh share. docs/architecture.md is the map."""
