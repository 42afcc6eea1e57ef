"""What every protocol is built on: calls, families, fields and errors. Independent of any one protocol."""
