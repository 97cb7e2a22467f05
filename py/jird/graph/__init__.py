"""What is computed: tensors, nodes, the op table and the words models write in."""
