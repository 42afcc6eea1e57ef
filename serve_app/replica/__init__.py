"""One model in one process: text and engine wired together. Depends on neither Ray nor HTTP."""
