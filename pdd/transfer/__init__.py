"""KV transfers: sender on prefill, receiver on a decoder, and the identities that tie both to an admitted request."""
