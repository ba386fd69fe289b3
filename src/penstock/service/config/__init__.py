"""Configuration: settings as structs, files with the line of each key, flags, environment."""
