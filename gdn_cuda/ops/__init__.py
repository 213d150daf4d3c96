"""The operators, a module a family."""
