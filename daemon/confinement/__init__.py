"""What a process can be kept from: by filters of system calls, by rights it gives away."""
