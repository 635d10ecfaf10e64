"""Reading a matrix: chunks, rows, columns and selections of features."""
