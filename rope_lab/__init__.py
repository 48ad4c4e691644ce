"""rope_lab: which rotary embedding, with which base, lets a model really use a context of length L, and how do I know?"""

__version__ = "0.1.0"
