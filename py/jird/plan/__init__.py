"""Graph -> fuse -> split -> select -> place -> Plan: pure functions."""
