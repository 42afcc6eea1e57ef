"""One model in one process: text and engine wired together. Knows neither Ray nor HTTP."""
