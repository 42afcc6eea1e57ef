"""What happens now: latencies in fine buckets, five minutes of counts, and figures of them. Pure logic."""
