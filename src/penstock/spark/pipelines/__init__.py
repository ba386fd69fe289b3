"""Pipelines of users: what a pipeline file may contain, and how its queries run."""
