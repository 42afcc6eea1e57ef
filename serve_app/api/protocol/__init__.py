"""What every protocol stands on: calls, families, fields and errors. Knows no protocol and no route."""
