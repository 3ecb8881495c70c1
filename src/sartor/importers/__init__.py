"""From a framework's model to the graph of Layers; one file a framework."""
