"""HAProxy as our launcher runs it: Ray's configuration made private, bounded and polite, kept running.

The launcher writes `answers` and `settings` once. Ray starts `supervisor` as its HAProxy binary. The
supervisor adapts the file that Ray wrote (`config`), runs HAProxy with that file, and answers for HAProxy
at the admin socket (`relay`). Its process knows neither Ray nor the api, because it must be light.
"""
