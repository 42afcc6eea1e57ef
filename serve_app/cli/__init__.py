"""The `serve-app` command: one module per command, plain-text output, and a reason for every failure.

Commands talk to a running server through HTTP alone (`server`), or do their work in this
process. Modules that need torch or Ray are imported only when a command that needs them runs.
"""
