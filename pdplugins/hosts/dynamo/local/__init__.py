"""``dynamo serve``: a whole Dynamo stack on this machine, with nothing but processes and files."""
