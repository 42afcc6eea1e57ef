"""Where responses are kept for later requests: in this gateway's memory, or by the control plane."""
