"""Benchmarks of one device, in process: no Ray, no HTTP, no network, and no model to download."""
