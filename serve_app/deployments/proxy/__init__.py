"""HAProxy as our launcher runs it: private, bounded, answering in clients' own protocols, and kept running.

The launcher writes `settings` once, from `answers` and `repeats`. Ray starts `supervisor` as its HAProxy
binary. The supervisor adapts the file that Ray wrote (`haproxy_config`), runs HAProxy with the result, and
answers in HAProxy's place at the admin socket (`relay`). Its process imports neither Ray nor the api, so that
it stays light. `middleware` does the same for Serve's own proxy, in case clients reach that one.
"""
