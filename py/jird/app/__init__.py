"""The page's side of Python: messages in, engine calls, messages out."""
