"""The OpenAI-compatible router: sockets, bodies and state around `headway.core`'s decisions.

Imports no engine code; talks HTTP to whatever serves the OpenAI API.
"""
