"""Where a rank's tensors live and its ops run: the CPU, or a NeuronCore through torch-neuronx."""
