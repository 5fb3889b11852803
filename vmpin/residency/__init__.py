"""Where the VMs' threads ran: samples of them over time, and the books of these."""
