"""`serve-app batch`: a file of requests becomes a file of answers, as in OpenAI's Batch API."""
