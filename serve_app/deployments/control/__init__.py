"""The control plane as a Serve deployment, and its way to Serve itself."""
