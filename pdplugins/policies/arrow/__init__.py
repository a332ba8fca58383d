"""Arrow (Wu et al.): requests are placed by predicted TTFT and running tokens, instances move between four pools."""
