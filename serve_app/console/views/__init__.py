"""The data of pages and the bodies of forms: pure functions over the API's JSON. No HTTP, no template."""
