"""The demo, the diagrams, the layout file, and the suites of others. Not part of the package."""
