"""`python -m serve_app.cli`: the same as `serve-app`."""

from serve_app.cli.main import main

if __name__ == "__main__":
    main()
