"""Fixtures for all tests."""

pytest_plugins = ("tests.support.ray_cluster", "tests.support.served", "tests.support.tiny_fixtures")
