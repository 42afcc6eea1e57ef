"""Deploy files: what they may say, what is wrong in one, and how a change of one is rolled out."""
