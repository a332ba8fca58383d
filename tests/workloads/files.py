"""Files that the tests of readers write."""

from __future__ import annotations

from pathlib import Path

AGENTIC = """session,sub_agent,round,t_s,type,model,input_tokens,output_tokens,shared_prefix,session_cached_tokens
a,0,0,0.0,n,m,15818,154,0,0
a,0,1,9.0,n,m,16003,99,15808,15808
a,0,2,7000.0,n,m,9000,0,8960,9001
b,0,0,0.0,n,m,200,5,0,0
"""


def write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text)
    return path
