"""HAProxy as our launcher runs it: Ray's configuration made private, bounded and polite, kept running.

The launcher writes `settings` once, from `answers` and `repeats`. Ray starts `supervisor` as its HAProxy
binary. The supervisor adapts the file that Ray wrote (`haproxy_config`), runs HAProxy with that file, and
answers for HAProxy at the admin socket (`relay`). Its process knows neither Ray nor the api, because it must
be light.
`middleware` makes Serve's own proxy polite, where clients reach that one.
"""
