"""The replies of providers, made well-formed in one pass before any library parses them."""
