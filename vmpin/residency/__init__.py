"""Where threads ran: samples of the VMs' threads over time with their books, and of every thread for some seconds."""
