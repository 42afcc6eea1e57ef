"""The `serve-app` command: one module a command, plain text out, a reason for every failure.

Commands talk to a running server through HTTP alone (`server`), or do their work in this
process. What needs torch or Ray is imported by the command that needs it, when it runs.
"""
