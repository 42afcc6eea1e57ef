"""Stores of responses for later requests: in this gateway's memory, or in the control plane."""
