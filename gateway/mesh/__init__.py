"""The gateway's side of the mesh: streams to instances, and requests driven over them. `mesh.Mesh` is the way in."""
