"""What every protocol is built on: calls, families, fields and errors. Knows no protocol and no route."""
