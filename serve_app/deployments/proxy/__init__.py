"""HAProxy as our launcher runs it: Ray's configuration made private, bounded and polite, kept running.

`answers` and `repeats` -> `settings` are written once, by the launcher. `supervisor` is what Ray starts as
its HAProxy binary: it adapts the file that Ray wrote (`config`), runs HAProxy with it, and stands in for it
at the admin socket (`relay`). The supervisor's process knows neither Ray nor the api: it must be light.
`middleware` makes Serve's own proxy polite, where clients reach that one.
"""
