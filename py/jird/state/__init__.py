"""What outlives a step: KV slots (contiguous), later paged and recurrent pools."""
