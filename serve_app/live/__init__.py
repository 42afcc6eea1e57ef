"""Live figures: latencies in fine buckets, five minutes of counts, and figures made from them. Pure logic."""
