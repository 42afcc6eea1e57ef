"""The control plane as a gateway meets it: commands, snapshots, catalogues put into effect, usage shipped."""
