"""What happens: state, policies and decisions, as pure functions of (state, now). No I/O, no clock."""
