"""Deploy files: their schema, and checks that find everything that is wrong in one."""
