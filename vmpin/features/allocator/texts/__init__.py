"""What is text: annotations, of vmpin's keys and of peers', a grant's own annotation, and the ledger's data. All but
the last are written by others, or could be."""
