"""Generated ids -> text, thoughts and tool calls; and the grammar that an answer must match."""
