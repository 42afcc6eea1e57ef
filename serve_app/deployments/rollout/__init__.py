"""How a deploy file replaces what is running, in steps that lose no request."""
