"""How a deploy file replaces what runs, in steps that lose no request."""
