"""Text in, ids out and back: tokenizers, chat templates, streaming detokenisation, stop strings."""
