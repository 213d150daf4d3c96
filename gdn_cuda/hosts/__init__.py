"""Other libraries whose functions gdn_cuda replaces: which parameters were verified, and what stands in their place.
`compat` and `integrations` say what replaces what."""
