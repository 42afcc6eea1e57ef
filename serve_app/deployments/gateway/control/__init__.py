"""A gateway's side of the control plane: commands, snapshots, catalogues and the shipping of usage."""
