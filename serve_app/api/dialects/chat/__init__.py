"""What the protocols of chat share: messages, tools, formats, fields, and the wire format of answers."""
