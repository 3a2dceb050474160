"""What to run: TOML files and the loader that turns them into core objects."""
