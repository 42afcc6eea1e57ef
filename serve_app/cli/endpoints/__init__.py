"""`serve-app endpoints`: show and change what a running server offers."""
