"""Makers of GPUs, one module each: speeds by model, words for links, labels, names of resources.

vendor   what such a module gives
known    all of them, and which one a machine or a resource has
"""
