"""Deploy files: what they may say, and everything that is wrong in one."""
