"""What pages show, and what their forms ask for: pure functions over the API's JSON. No HTTP, no template."""
