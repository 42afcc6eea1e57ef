"""Fixtures for all tests."""

pytest_plugins = (
    "tests.support.databases",
    "tests.support.ray_cluster",
    "tests.support.served",
    "tests.support.tiny_fixtures",
)
