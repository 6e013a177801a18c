"""Gangs as the pods' own operators declare them: read from labels, annotations and owners.

`decide.recognise` is asked; `answer` is what it says; `systems` is the table of what is known.
Pure: a pod and the objects that it hangs on go in, an answer comes out.
"""
