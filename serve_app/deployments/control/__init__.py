"""The control plane as a Serve deployment, and its calls to Serve itself."""
