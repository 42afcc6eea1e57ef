"""A gateway's side of the control plane: commands, snapshots, catalogues, shipping of usage."""
