"""What build.py does, a module a duty; standard library only, CPython 3.11 or later."""
