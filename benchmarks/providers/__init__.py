"""Prompt caches of model providers, simulated by their published rules on a clock of one's own, over real HTTP.

Nothing here guesses what a rule leaves open in our favour: where the documentation is silent, the dearer reading holds, and the
docstring says so. `rules.PROVIDERS` lists who is simulated; `server.Providers` speaks for all of them.
"""
