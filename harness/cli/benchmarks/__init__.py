"""What `neuron-harness bench` measures, one file a subject."""
