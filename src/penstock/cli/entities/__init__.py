"""Commands for namespaces, event hubs, groups, policies, usage and activity."""
