"""Fixtures for all tests."""

pytest_plugins = ("tests.ray_cluster", "tests.served")
