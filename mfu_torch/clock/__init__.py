"""The time: clocks that never stall the device, and where the wall time went."""
