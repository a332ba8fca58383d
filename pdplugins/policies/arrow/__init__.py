"""Arrow (Wu et al.): places requests by predicted TTFT and running tokens, and moves instances between four pools."""
