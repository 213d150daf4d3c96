"""Replaces functions of other libraries (hosts), after comparing their parameters with those that were verified. `compat` and
`integrations` declare which function replaces which."""
