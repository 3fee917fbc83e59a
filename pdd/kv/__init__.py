"""KV blocks: what they mean, how they are named, framed, proven whole and held."""
