"""IR2: the graph of Layers, element-wise expressions, what each kind of layer means, and the passes."""
